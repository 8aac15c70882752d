"""Stage `export`: what training left in a folder becomes the files that ship in the package.

    in   t3, flow.refine, vocoder, tokenizer, voice_encoder (.safetensors, under the networks' own names),
         wren_tokenizer.json, voices.safetensors (nightingale_lab.train.cast)
    out  the files of `nightingale.wren`, compact, with the official file's prefixes in s3gen

Everything is made and checked in memory first: each network must take its packed weights, the vocabulary must
read capitals, and the whole must fit `LIMIT_BYTES`. Only then is anything written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from nightingale import wren
from nightingale.errors import CheckpointError, ConfigError, NightingaleError
from nightingale.files import write_whole
from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer
from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.presets import Preset
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import load, read_tensors
from nightingale.models.compact import unpack
from nightingale.text.bpe import BPETokenizer
from nightingale.types import Sampling
from nightingale.voices.voice import Voice
from nightingale_lab.train.cast import CastVoice, read_cast
from nightingale_lab.train.pack_weights import pack
from nightingale_lab.train.silence import read_clips, silence_ids

LIMIT_BYTES: Final = 40 * 2**20
KEEP_HALF: Final = ("mel2wav.[!f]*",)
"""The vocoder's error is heard directly. Its f0_predictor alone is packed: in float16 the whole would be
0.3 MiB over the limit."""
FORMAT: Final = {"format": "nightingale-compact", "version": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One network on its way into the package."""

    source: str
    target: str
    """A role of wren.FILES."""
    prefix: str
    build: Callable[[Preset], nn.Module]


PARTS: Final = (
    Part(source="t3", target="t3", prefix="", build=lambda p: T3(p.t3)),
    Part(source="flow.refine", target="s3gen", prefix="flow.", build=lambda p: Flow(p.flow)),
    Part(source="vocoder", target="s3gen", prefix="mel2wav.", build=lambda p: Hift(p.hift)),
    Part(
        source="tokenizer",
        target="s3gen",
        prefix="tokenizer.",
        build=lambda p: SpeechTokenizer(p.speech_tokenizer),
    ),
    Part(
        source="voice_encoder",
        target="voice_encoder",
        prefix="",
        build=lambda p: VoiceEncoder(p.voice_encoder),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was written."""

    bytes: Mapping[str, int]
    """By file."""
    parameters: Mapping[str, int]
    """By network."""
    loss: Mapping[str, float]
    """By network: size of the packing error against the size of the weights."""

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())

    def __str__(self) -> str:
        rows = [f"{name:<28}{size / 2**20:8.2f} MiB" for name, size in self.bytes.items()]
        nets = [
            f"{n:<28}{self.parameters[n] / 1e6:8.2f} M, packing loss {self.loss[n]:.2%}" for n in self.loss
        ]
        return "\n".join([*nets, *rows, f"{'in all':<28}{self.total_bytes / 2**20:8.2f} MiB"])


def export(
    source: Path,
    out: Path,
    preset: Preset,
    *,
    default_voice: str = "heart",
    sampling: Sampling = wren.SAMPLING,
    references: Sequence[Path] = (),
    keep_half: Sequence[str] = KEEP_HALF,
    limit_bytes: int = LIMIT_BYTES,
) -> Report:
    """Write wren from the training outputs in `source` to the folder `out`.

    references: recordings of speech, in which it is measured what silence between words sounds like.
    """
    packed: dict[str, dict[str, Tensor]] = {}
    parameters, loss = {}, {}
    for part in PARTS:
        path = source / f"{part.source}.safetensors"
        tensors = read_tensors(_there(path))
        named = pack({part.prefix + name: t for name, t in tensors.items()}, keep_half)
        back = {name.removeprefix(part.prefix): t for name, t in unpack(named).items()}
        net = load(lambda part=part: part.build(preset), back, source=path)  # type: ignore[misc]
        if isinstance(net, SpeechTokenizer):
            quiet = silence_ids(net, read_clips(references))
        packed.setdefault(part.target, {}).update(named)
        parameters[part.source] = sum(t.numel() for t in tensors.values())
        loss[part.source] = _loss(tensors, back)
    files = {wren.FILES[role]: to_safetensors(tensors, FORMAT) for role, tensors in packed.items()}
    files[wren.FILES["tokenizer"]] = reading_capitals(_there(source / "wren_tokenizer.json")).encode()
    cast = read_cast(_there(source / "voices.safetensors"), default_voice)
    sizes = {name: len(data) for name, data in files.items()}
    card: dict[str, Any] = {
        "name": "wren",
        "default_voice": default_voice,
        "voices": [voice.name for voice in cast],
        "sampling": asdict(sampling),
        "silence_ids": quiet,
        "parameters": parameters,
        "packing_loss": {name: round(value, 5) for name, value in loss.items()},
        "bytes": sizes,
        "fingerprint": _fingerprint(files),
    }
    files[wren.FILES["card"]] = (json.dumps(card, indent=1) + "\n").encode()
    voices = {voice.name: _voice(voice) for voice in cast}
    report = Report(bytes={n: len(d) for n, d in files.items()}, parameters=parameters, loss=loss)
    _check_size(report, voices, limit_bytes)
    _write(out, files, cast, voices)
    _write_guess(source / wren.DRAFT_FILE, out / wren.DRAFT_FILE)
    return report


def reading_capitals(path: Path) -> str:
    """The vocabulary with a normalizer in front: small letters without accents, tags left as they are.

    Wren's pieces are all lower case, and the family's tokenizer hands over a capital first letter.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        held["normalizer"] = {
            "type": "Sequence",
            "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}],
        }
        text = json.dumps(held, ensure_ascii=False)
        pieces = BPETokenizer(held)
    except (NightingaleError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad_vocabulary(path, str(error)) from error
    # A tag is found before its letters are made small only if it was added with normalized=False.
    names = {number: name for name, number in held["model"]["vocab"].items()}
    heard = [names[number] for number in pieces.encode("Ab[SPACE]Éa")]
    if "".join(heard) != "ab[SPACE]ea" or "[SPACE]" not in heard:
        raise _bad_vocabulary(path, f"'Ab[SPACE]Éa' read as {' '.join(heard)}")
    return text


def _bad_vocabulary(path: Path, got: str) -> CheckpointError:
    return CheckpointError(
        "the vocabulary cannot be shipped",
        got=f"{path}: {got}",
        allowed="byte pairs of small letters, with tags added as normalized=false",
        fix="Make it again: nightingale_lab.train.prepare.train_vocabulary.",
    )


def _there(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(
            "a stage has left nothing to export",
            got=f"no {path.name} in {path.parent}",
            allowed=", ".join(f"{p.source}.safetensors" for p in PARTS)
            + ", voices.safetensors, wren_tokenizer.json",
            fix="Run that stage, or copy its output there.",
        )
    return path


def _loss(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """Relative error over all weights of a network."""
    error = sum(
        float((after[name] - t.float()).square().sum(dtype=torch.float64)) for name, t in before.items()
    )
    power = sum(float(t.float().square().sum(dtype=torch.float64)) for t in before.values())
    return (error / power) ** 0.5 if power else 0.0


def _fingerprint(files: Mapping[str, bytes]) -> str:
    """Of the weights that make a voice from a clip."""
    digest = hashlib.sha256()
    for role in ("s3gen", "voice_encoder"):
        digest.update(files[wren.FILES[role]])
    return digest.hexdigest()[:16]


def _voice(voice: CastVoice) -> Voice:
    """The speaker vector serves T3 and the flow; neither needs a prompt."""
    return Voice.checked(
        name=voice.name,
        family="wren",
        speaker=voice.speaker,
        prompt_ids=torch.zeros(0, dtype=torch.int64),
        flow_prompt_ids=torch.zeros(0, dtype=torch.int64),
        flow_prompt_mel=torch.zeros(0, 80),
        flow_speaker=voice.speaker,
        provenance=f"built in: {voice.summary}",
    )


def _check_size(report: Report, voices: Mapping[str, Voice], limit_bytes: int) -> None:
    # A voice file is a header and two vectors; its exact size is not worth writing it twice.
    total = report.total_bytes + sum(2048 + 8 * len(voice.speaker) for voice in voices.values())
    if total > limit_bytes:
        raise ConfigError(
            "wren is too large to ship",
            got=f"{total / 2**20:.2f} MiB\n{report}",
            allowed=f"{limit_bytes / 2**20:.2f} MiB",
            fix="Make a network smaller, or keep less of it in float16.",
        )


def _write_guess(source: Path, target: Path) -> None:
    """Beside the voice, and not counted as its: speech is the same without it. One made for another T3 would
    guess nothing, so an old one goes."""
    if not source.is_file():
        target.unlink(missing_ok=True)
        return
    packed = pack(read_tensors(source))
    load(lambda: DraftHead.shaped_like(unpack(packed)), unpack(packed), source=source)
    write_whole(target, to_safetensors(packed, FORMAT))


def _write(
    out: Path, files: Mapping[str, bytes], cast: Sequence[CastVoice], voices: Mapping[str, Voice]
) -> None:
    folder = out / wren.VOICES
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.safetensors"), *folder.glob("*.md")]:
        if old.stem not in voices:
            old.unlink()
    for member in cast:
        voices[member.name].save(folder / f"{member.name}.safetensors")
        write_whole(folder / f"{member.name}.md", member.card().encode())
    # The card last: a copy without it is not taken for a model.
    for name, data in files.items():
        write_whole(out / name, data)
