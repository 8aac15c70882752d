"""Players for A/B listening: the same text by each profile, with waveform and spectrogram, all inline."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

from nightingale.types import Samples
from nightingale_lab.bench.report.pictures import data_uri, outline_svg, spectrogram_png
from nightingale_lab.bench.report.rows import Line


def players(verify: Sequence[Line], clips: int) -> str:
    """Return the players of each model's newest verify, without recordings that are gone."""
    found = []
    for model in dict.fromkeys(str(line["model"]) for line in verify):
        line = [one for one in verify if one["model"] == model][-1]
        wavs = [Path(wav) for wav in line["facts"].get("wavs", ())]
        texts = line["facts"].get("texts", ())
        for wav, text in list(zip(wavs, texts, strict=False))[:clips]:
            takes = [wav]
            if line.get("against"):
                takes.append(wav.parent.parent / line["against"] / wav.name)
            cards = "".join(_card(take) for take in takes if take.is_file())
            if cards:
                found.append(f'<h3>{escape(model)}: {escape(text)}</h3><div class="takes">{cards}</div>')
    return "".join(found)


def _card(wav: Path) -> str:
    from nightingale.audio.read import read_audio

    samples, rate_hz = read_audio(wav)
    sound = mp3_uri(samples, rate_hz)
    picture = data_uri(spectrogram_png(samples), "image/png")
    name = escape(wav.parent.name)
    return (
        f"<figure><figcaption>{name}, {len(samples) / rate_hz:.1f} s</figcaption>"
        f'<audio controls preload="none" src="{sound}"></audio>{outline_svg(samples)}'
        f'<img alt="spectrogram, {name}" src="{picture}"></figure>'
    )


def mp3_uri(samples: Samples, rate_hz: int) -> str:
    """Return a clip as MP3: every browser plays it, and it has a tenth of the size of a WAV."""
    import soundfile

    encoded = io.BytesIO()
    soundfile.write(encoded, samples, rate_hz, format="MP3")
    return data_uri(encoded.getvalue(), "audio/mpeg")
