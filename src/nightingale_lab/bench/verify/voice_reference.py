"""Stored references of voices: how a model with one voice sounds, in a few numbers.

The checks of the spectrum have wide bounds, since they must hold for every voice. These compare a voice with itself:
loudness, pitch, spectrum, speaking rate, and how likely T3 finds its own tokens. So they detect a voice that was
swapped, a sampling temperature that changed, damaged weights, a missing band or a wrong gain. A reference holds for
certain sentences and, unlike a baseline (baseline.py), for any backend and machine. Those of wren's built-in voices
are in `voice_references.jsonl` beside this file; those of other models are stored in the user's cache after their
first `nightingale verify`.

Wren with other seeds differs by 0.25 % in pitch, 0.01 dB in loudness, 0.12 dB in the bands and 0.004 in likelihood;
with twice the temperature its tokens are less likely by 0.2, and with 15 % of noise in one layer of T3 the stored
tokens' likelihoods change by 0.04. Bella, the voice nearest to the default one, differs by 3.9 dB in the bands.

    python -m nightingale_lab.bench.verify.built_in_references     # measure wren's voices again, and store
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nightingale.types import Samples
from nightingale_lab.bench.pitch import pitch_of
from nightingale_lab.bench.verify.check import Check, missing
from nightingale_lab.bench.verify.determinism import difference
from nightingale_lab.bench.verify.spectrum import FFT_SIZE, frames_power
from nightingale_lab.bench.verify.subject import RecordedUtterance, Subject

STORED = Path(__file__).with_name("voice_references.jsonl")
GROUP = "voice"
check = partial(Check, GROUP)
BAND_EDGES_HZ = (0, 500, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 10_000, 12_000)
LEVEL_DB, PITCH_SHARE, BANDS_DB, RATE_SHARE, LIKELIHOOD = 1.0, 0.02, 1.0, 0.06, 0.1
"""Bounds of the differences of loudness, pitch, bands (their mean), seconds per word and likelihood."""
STORED_LIKELIHOOD = 0.01
"""Bound of the mean difference of the stored tokens' log probabilities, which are computed in float32."""
STORED_CLIPS = 2
"""Clips of which tokens and log probabilities are stored."""
NUMBERS = "On May 3, 1984, the FBI paid $42 for 17 copies of file B6, in room 205."
"""A text with digits and letters, whose text ids are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceReference:
    model: str
    voice: str
    texts: str
    """Digest of the sentences."""
    level_db: float
    """Mean level of the louder half of the 20 ms frames, relative to full scale."""
    pitch_hz: float
    """Mean of the clips' medians."""
    bands_db: tuple[float, ...]
    """Level of each band of the long-term average spectrum, relative to all of it."""
    seconds_per_word: float
    likelihood: float | None
    """Mean log probability of the tokens, in nats."""
    tokens: tuple[tuple[int, ...], ...]
    log_probabilities: tuple[tuple[float, ...], ...]
    """The tokens of the first clips, and T3's log probability of each."""
    number_ids: tuple[int, ...]
    """Text ids of NUMBERS."""

    def is_of(self, other: VoiceReference) -> bool:
        return (self.model, self.voice, self.texts) == (other.model, other.voice, other.texts)


def measure_reference(subject: Subject, clips: Sequence[RecordedUtterance]) -> VoiceReference:
    """Return the numbers of these clips of the subject."""
    likelihoods = [subject.log_probabilities(clip.text, clip.token_ids) for clip in clips]
    known = [float(np.mean(each)) for each in likelihoods if each]
    pitches = [pitch_of(clip.samples, clip.rate_hz).median_hz for clip in clips]
    texts = "\n".join(clip.text for clip in clips)
    return VoiceReference(
        model=subject.name,
        voice=subject.voice,
        texts=hashlib.sha256(texts.encode()).hexdigest()[:16],
        level_db=float(np.mean([level_db(clip.samples, clip.rate_hz) for clip in clips])),
        pitch_hz=float(np.mean([pitch for pitch in pitches if pitch] or [0.0])),
        bands_db=tuple(float(band) for band in bands_db(clips)),
        seconds_per_word=sum(len(c.samples) / c.rate_hz for c in clips) / len(texts.split()),
        likelihood=float(np.mean(known)) if known else None,
        tokens=tuple(clip.token_ids for clip in clips[:STORED_CLIPS]),
        log_probabilities=tuple(tuple(round(p, 4) for p in each) for each in likelihoods[:STORED_CLIPS]),
        number_ids=tuple(subject.text_ids(NUMBERS, "en")),
    )


def level_db(samples: Samples, rate_hz: int) -> float:
    """Return the mean level of the louder half of the 20 ms frames."""
    size = rate_hz // 50
    power = np.mean(samples[: len(samples) // size * size].reshape(-1, size).astype(np.float64) ** 2, axis=1)
    loud = np.sort(power)[len(power) // 2 :]
    return float(10 * np.log10(np.mean(loud) + 1e-12)) if len(loud) else -120.0


def bands_db(clips: Sequence[RecordedUtterance]) -> NDArray[np.float64]:
    power = np.mean([frames_power(np.nan_to_num(clip.samples)).mean(axis=0) for clip in clips], axis=0)
    hz = np.fft.rfftfreq(FFT_SIZE, 1 / clips[0].rate_hz)
    bands = [power[(hz >= low) & (hz < high)].mean() for low, high in pairwise(BAND_EDGES_HZ)]
    return np.asarray(10 * np.log10(np.array(bands) / (power.mean() + 1e-20) + 1e-9))


def read_references(*paths: Path) -> list[VoiceReference]:
    """Return the references of files that exist, without lines of another format."""
    found = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                row = json.loads(line)
                nested = {name: tuple(map(tuple, row[name])) for name in ("tokens", "log_probabilities")}
                flat = {name: tuple(row[name]) for name in ("bands_db", "number_ids")}
                found.append(VoiceReference(**{**row, **nested, **flat}))
            except (ValueError, TypeError, KeyError):
                continue
    return found


def write_references(path: Path, references: Sequence[VoiceReference]) -> None:
    """Write one line each; of several for the same model, voice and sentences, the last one is kept."""
    kept = {(one.model, one.voice, one.texts): one for one in references}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(asdict(one), sort_keys=True) + "\n" for one in kept.values())
    path.write_text(text, encoding="utf-8")


def voice_checks(
    subject: Subject,
    clips: Sequence[RecordedUtterance],
    own: Path,
    *,
    accept: bool = False,
    stored: Path = STORED,
) -> list[Check]:
    """Compare the clips with the stored reference, or store theirs in `own` if there is none.

    accept: store it in any case, for later runs.
    """
    now, mine = measure_reference(subject, clips), read_references(own)
    known = next((one for one in [*mine, *read_references(stored)] if one.is_of(now)), None)
    if accept or known is None:
        write_references(own, [*mine, now])
        why = "none was stored for these sentences; this one is now" if known is None else "stored"
        return [missing(GROUP, f"voice {now.voice}", f"{why}, in {own}: the next run compares with it")]
    return [*compare_sound(now, known), *compare_text_and_tokens(subject, clips, now, known)]


def compare_sound(now: VoiceReference, then: VoiceReference) -> list[Check]:
    bands = np.abs(np.subtract(now.bands_db, then.bands_db))
    worst = int(bands.argmax())
    note = f"{bands[worst]:.1f} dB from {BAND_EDGES_HZ[worst]} to {BAND_EDGES_HZ[worst + 1]} Hz"
    louder = now.level_db - then.level_db
    return [
        check(
            "loudness", louder, low=-LEVEL_DB, high=LEVEL_DB, unit="dB", detail="difference from the stored"
        ),
        _ratio("pitch", now.pitch_hz, then.pitch_hz, PITCH_SHARE),
        check(
            "spectrum, mean difference of bands", float(bands.mean()), high=BANDS_DB, unit="dB", detail=note
        ),
        _ratio("seconds per word", now.seconds_per_word, then.seconds_per_word, RATE_SHARE),
    ]


def _ratio(name: str, now: float, then: float, share: float) -> Check:
    value = now / then if then else float("nan")
    return check(
        f"{name}, ratio", value, low=1 - share, high=1 + share, detail=f"{now:.4g}, {then:.4g} stored"
    )


def compare_text_and_tokens(
    subject: Subject, clips: Sequence[RecordedUtterance], now: VoiceReference, then: VoiceReference
) -> list[Check]:
    differing = difference(list(now.number_ids), list(then.number_ids))
    checks = [check("text ids of digits and letters that differ", float(differing), high=0, detail=NUMBERS)]
    if now.likelihood is None or then.likelihood is None:
        return [*checks, missing(GROUP, "likelihood of the tokens", "the model has no T3")]
    change = now.likelihood - then.likelihood
    checks.append(
        check("likelihood of the tokens", change, low=-LIKELIHOOD, high=LIKELIHOOD, detail="nats, difference")
    )
    apart = [
        abs(new - old)
        for clip, tokens, stored in zip(clips, then.tokens, then.log_probabilities, strict=False)
        for new, old in zip(subject.log_probabilities(clip.text, tokens), stored, strict=True)
    ]
    name, note = "likelihood of the stored tokens", "nats, mean difference"
    return [*checks, check(name, float(np.mean(apart)), high=STORED_LIKELIHOOD, detail=note)]
