"""Stage `export`: pack the outputs of training into the files that ship in the package.

    in   t3, flow.refine, vocoder, tokenizer, voice_encoder (.safetensors, under the networks' own names),
         wren_tokenizer.json, voices.safetensors (nightingale_lab.train.speakers)
    out  the files of `nightingale.wren`, compact, with the official file's prefixes in s3gen

Everything is built and checked in memory before it is written: each network must load its packed weights, the
vocabulary must encode capitals, and the total size must not exceed `LIMIT_BYTES`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
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
from nightingale.models.chatterbox.build import new_vocoder
from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer
from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale.models.chatterbox.presets import Preset
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import load, read_tensors
from nightingale.models.compact import unpack
from nightingale.text.bpe import BPETokenizer
from nightingale.types import Sampling
from nightingale.voices.voice import Voice
from nightingale_lab.train.loop import save_weights
from nightingale_lab.train.pack_weights import pack
from nightingale_lab.train.silence import read_clips, silence_ids
from nightingale_lab.train.speakers import BuiltInVoice, read_built_in_voices
from nightingale_lab.train.tokenizer_people import PEOPLE_TOKENIZER

LIMIT_BYTES: Final = 44 * 2**20
KEEP_FLOAT16: Final = ("lstm.*", "proj.*")
"""Quantization errors of the voice encoder add up over its frames: in int8 its vectors turn away from those of its
teacher. Those of the vocoder are far below its samples (dev/LOG.md)."""
RESPELLINGS: Final = {
    "couldn't": "couldent",
    "wouldn't": "wouldent",
}
"""Words that this T3 says more clearly by another spelling, by both recognizers (dev/LOG.md). Try them again with
another T3, which is trained on the usual spelling."""
FORMAT: Final = {"format": "nightingale-compact", "version": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One network to pack."""

    source: str
    target: str
    """Key of its file in wren.FILES."""
    prefix: str
    build: Callable[[Preset], nn.Module]


PARTS: Final = (
    Part(source="t3", target="t3", prefix="", build=lambda p: T3(p.t3)),
    Part(source="flow.refine", target="s3gen", prefix="flow.", build=lambda p: Flow(p.flow)),
    Part(source="vocoder", target="s3gen", prefix="mel2wav.", build=lambda p: new_vocoder(p.vocoder)),
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
    """Sizes and packing errors of what was written."""

    bytes: Mapping[str, int]
    """Size of each file."""
    parameters: Mapping[str, int]
    """Parameters of each network."""
    loss: Mapping[str, float]
    """Relative packing error of each network."""

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
    keep_float16: Sequence[str] = KEEP_FLOAT16,
    limit_bytes: int = LIMIT_BYTES,
) -> Report:
    """Write wren from the training outputs in `source` to the folder `out`.

    references: recordings of speech, to find the tokens of silence between words.
    """
    packed: dict[str, dict[str, Tensor]] = {}
    parameters, loss = {}, {}
    for part in PARTS:
        path = _require(source / f"{part.source}.safetensors")
        one = _packed(part, path, preset, keep_float16)
        if isinstance(one.net, SpeechTokenizer):
            silence = silence_ids(one.net, read_clips(references))
        packed.setdefault(part.target, {}).update(one.tensors)
        parameters[part.source], loss[part.source] = one.parameters, one.loss
    files = {wren.FILES[role]: to_safetensors(tensors, FORMAT) for role, tensors in packed.items()}
    files[wren.FILES["tokenizer"]] = with_normalizer(_require(source / "wren_tokenizer.json")).encode()
    built_in = read_built_in_voices(_require(source / "voices.safetensors"), default_voice)
    sizes = {name: len(data) for name, data in files.items()}
    card: dict[str, Any] = {
        "name": "wren",
        "default_voice": default_voice,
        "voices": [voice.name for voice in built_in],
        "sampling": asdict(sampling),
        "silence_ids": silence,
        "parameters": parameters,
        "packing_loss": {name: round(value, 5) for name, value in loss.items()},
        "bytes": sizes,
        "fingerprint": _fingerprint(files),
    }
    files[wren.FILES["card"]] = (json.dumps(card, indent=1) + "\n").encode()
    voices = {voice.name: _voice(voice) for voice in built_in}
    report = Report(bytes={n: len(d) for n, d in files.items()}, parameters=parameters, loss=loss)
    _check_size(report, voices, limit_bytes)
    _write(out, files, built_in, voices)
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedNetwork:
    """One network as it ships."""

    tensors: dict[str, Tensor]
    """Tensors by their names in the file."""
    net: nn.Module
    parameters: int
    loss: float
    """The relative packing error."""


def _packed(
    part: Part,
    path: Path,
    preset: Preset,
    keep_float16: Sequence[str],
    mixed_with: Mapping[str, Tensor] | None = None,
    share: float = 1.0,
) -> PackedNetwork:
    """share: of these weights, where the rest is of others."""
    tensors = read_tensors(path)
    if mixed_with is not None and share < 1:
        tensors = {
            name: torch.lerp(mixed_with[name].float(), t.float(), share) for name, t in tensors.items()
        }
    named = pack({part.prefix + name: t for name, t in tensors.items()}, keep_float16)
    back = {name.removeprefix(part.prefix): t for name, t in unpack(named).items()}
    net = load(lambda: part.build(preset), back, source=path)
    count = sum(t.numel() for t in tensors.values())
    return PackedNetwork(tensors=named, net=net, parameters=count, loss=_loss(tensors, back))


def replace_networks(
    model: Path, weights: Sequence[Path], out: Path, preset: Preset, *, share: float = 1.0
) -> None:
    """Write a copy of a packed wren with other weights of some networks, whose files have the names of training.

    out: another folder, or that of the model. share: of the new weights, where the rest is of the old ones, from
    which they were trained. The tokens of silence stay as they are, because T3 stays; so the tokenizer can only be
    replaced by one that was trained further on people, to keep the meaning of its codes.
    """
    if not 0.0 < share <= 1.0:
        raise ConfigError(
            "the share of the new weights is out of range", got=str(share), allowed="above 0, at most 1"
        )
    named = {part.source: part for part in PARTS}
    parts = {PEOPLE_TOKENIZER.partition(".")[0]: named.pop("tokenizer"), **named}
    card = json.loads((model / wren.FILES["card"]).read_text(encoding="utf-8"))
    files: dict[str, dict[str, Tensor]] = {}
    for path in weights:
        part = parts.get(path.stem)
        if part is None:
            raise ConfigError("these weights cannot be replaced", got=path.name, allowed=", ".join(parts))
        target = wren.FILES[part.target]
        stored = files.get(target) or read_tensors(model / target)
        kept = {name: t for name, t in stored.items() if not name.startswith(part.prefix)}
        old = {
            name.removeprefix(part.prefix): t
            for name, t in unpack(stored).items()
            if name.startswith(part.prefix)
        }
        if share < 1 and read_tensors(path).keys() != old.keys():
            raise ConfigError(
                f"weights of another network cannot be mixed: this wren has {type(part.build(preset)).__name__}",
                got=f"{path.name} with {', '.join(sorted(read_tensors(path))[:3])}, …",
                allowed=", ".join(sorted(old)[:3]) + ", …",
            )
        one = _packed(part, path, preset, KEEP_FLOAT16, old, share)
        files[target] = kept | one.tensors
        card["packing_loss"][part.source] = round(one.loss, 5)
        card["parameters"][part.source] = one.parameters
    if out.resolve() != model.resolve():
        shutil.copytree(model, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for target, tensors in files.items():
        write_whole(out / target, to_safetensors(tensors, FORMAT))
        card["bytes"][target] = (out / target).stat().st_size
    names = [wren.FILES[role] for role in ("s3gen", "voice_encoder")]
    card["fingerprint"] = _fingerprint({name: (out / name).read_bytes() for name in names})
    write_whole(out / wren.FILES["card"], (json.dumps(card, indent=1) + "\n").encode())


def with_normalizer(path: Path) -> str:
    """Return the vocabulary with a normalizer that lowercases, strips accents and respells, but leaves tags alone.

    Wren's vocabulary is lower case, and the family's tokenizer passes a capital first letter.
    """
    steps: list[dict[str, Any]] = [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]
    steps += [
        {"type": "Replace", "pattern": {"String": usual}, "content": clearer}
        for usual, clearer in RESPELLINGS.items()
    ]
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored["normalizer"] = {"type": "Sequence", "normalizers": steps}
        text = json.dumps(stored, ensure_ascii=False)
        tokenizer = BPETokenizer(stored)
    except (NightingaleError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad_vocabulary(path, str(error)) from error
    # A tag is matched before lowercasing only if it was added with normalized=False.
    names = {number: name for name, number in stored["model"]["vocab"].items()}
    tokens = [names[number] for number in tokenizer.encode("Ab[SPACE]Éa")]
    if "".join(tokens) != "ab[SPACE]ea" or "[SPACE]" not in tokens:
        raise _bad_vocabulary(path, f"'Ab[SPACE]Éa' encoded as {' '.join(tokens)}")
    return text


def _bad_vocabulary(path: Path, got: str) -> CheckpointError:
    return CheckpointError(
        "the vocabulary cannot be shipped",
        got=f"{path}: {got}",
        allowed="byte pairs of lower-case letters, with tags added as normalized=false",
        fix="Build it again: nightingale_lab.train.prepare.train_vocabulary.",
    )


def split_s3gen(path: Path, out: Path) -> None:
    """Write the networks of a packed s3gen file in float32, to continue from them."""
    tensors = unpack(read_tensors(path))
    for part in PARTS:
        own = {k.removeprefix(part.prefix): v for k, v in tensors.items() if k.startswith(part.prefix)}
        if part.target == "s3gen" and own:
            out.mkdir(parents=True, exist_ok=True)
            save_weights(own, out / f"{part.source}.safetensors", None)


def _require(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(
            "an output of training is missing",
            got=f"no {path.name} in {path.parent}",
            allowed=", ".join(f"{p.source}.safetensors" for p in PARTS)
            + ", voices.safetensors, wren_tokenizer.json",
            fix="Run that stage, or copy its output there.",
        )
    return path


def _loss(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """Return the relative error over all weights of a network."""
    error = sum(
        float((after[name] - t.float()).square().sum(dtype=torch.float64)) for name, t in before.items()
    )
    power = sum(float(t.float().square().sum(dtype=torch.float64)) for t in before.values())
    return (error / power) ** 0.5 if power else 0.0


def _fingerprint(files: Mapping[str, bytes]) -> str:
    """Return a digest of the weights that make a voice from a clip."""
    digest = hashlib.sha256()
    for role in ("s3gen", "voice_encoder"):
        digest.update(files[wren.FILES[role]])
    return digest.hexdigest()[:16]


def _voice(voice: BuiltInVoice) -> Voice:
    """Return a voice for T3 and the flow; neither has a prompt."""
    return Voice.checked(
        name=voice.name,
        family="wren",
        speaker=voice.speaker,
        prompt_ids=torch.zeros(0, dtype=torch.int64),
        flow_prompt_ids=torch.zeros(0, dtype=torch.int64),
        flow_prompt_mel=torch.zeros(0, 80),
        flow_speaker=voice.flow_speaker,
        provenance=f"built in: {voice.summary}",
    )


def _check_size(report: Report, voices: Mapping[str, Voice], limit_bytes: int) -> None:
    # A voice file is a header and two vectors; an estimate of its size is enough.
    total = report.total_bytes + sum(2048 + 8 * len(voice.speaker) for voice in voices.values())
    if total > limit_bytes:
        raise ConfigError(
            "wren is too large to ship",
            got=f"{total / 2**20:.2f} MiB\n{report}",
            allowed=f"{limit_bytes / 2**20:.2f} MiB",
            fix="Use a smaller network, or keep less of it in float16.",
        )


def _write(
    out: Path, files: Mapping[str, bytes], built_in: Sequence[BuiltInVoice], voices: Mapping[str, Voice]
) -> None:
    folder = out / wren.VOICES
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.safetensors"), *folder.glob("*.md")]:
        if old.stem not in voices:
            old.unlink()
    for voice in built_in:
        voices[voice.name].save(folder / f"{voice.name}.safetensors")
        write_whole(folder / f"{voice.name}.md", voice.card().encode())
    # The card is written last: a folder without it is not a model.
    for name, data in files.items():
        write_whole(out / name, data)
