"""A voice: what a model needs to know of a speaker, as one immutable value.

Made once from a reference clip (or read from upstream's `conds.pt`), then carried in each request. A model
never keeps one, so two requests cannot wear each other's voice. The file format is safetensors with metadata.
"""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from nightingale.errors import VoiceError
from nightingale.files import write_whole

FORMAT: Final = "nightingale-voice"
FORMAT_VERSION: Final = "1"
SPEECH_CODES: Final = 6561
"""Speech ids are below this; the ids above it start and stop an utterance and have no sound."""
FRAMES_PER_TOKEN: Final = 2
SIZES: Final = {"chatterbox": (256, 192, 80, 150), "turbo": (256, 192, 80, 375)}
"""family -> speaker width, flow speaker width, mel bands, most prompt ids. "wren" may have any size, and
needs no prompts: its networks were trained to go by the speaker vectors alone."""
FAMILIES: Final = (*SIZES, "wren")

_TENSORS: Final = ("speaker", "prompt_ids", "flow_prompt_ids", "flow_prompt_mel", "flow_speaker")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Voice:
    """A speaker, for one model family. Build it with `Voice.checked`; equality is by content."""

    name: str
    family: str
    speaker: Tensor
    """(256,) float32: the speech LM's idea of the speaker."""
    prompt_ids: Tensor
    """(n,) int64: speech ids of the clip, the speech LM's prompt."""
    flow_prompt_ids: Tensor
    """(m,) int64: speech ids of the clip, the flow's prompt."""
    flow_prompt_mel: Tensor
    """(2m, 80) float32: the mel frames of those ids."""
    flow_speaker: Tensor
    """(192,) float32: the flow's idea of the speaker."""
    provenance: str
    """Where it came from, for people."""
    content_hash: str
    """Of family and tensors; a renamed voice is the same voice."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Voice) and self.content_hash == other.content_hash

    def __hash__(self) -> int:
        return hash(self.content_hash)

    @classmethod
    def checked(
        cls,
        *,
        name: str,
        family: str,
        speaker: Tensor,
        prompt_ids: Tensor,
        flow_prompt_ids: Tensor,
        flow_prompt_mel: Tensor,
        flow_speaker: Tensor,
        provenance: str = "",
    ) -> Voice:
        """A voice whose parts fit together, on the CPU, its own copies; anything else is a `VoiceError`."""
        if family not in FAMILIES:
            raise _bad(name, f"family {family!r}", ", ".join(FAMILIES))
        bare = family not in SIZES
        parts = {
            "speaker": _floats(name, "speaker", speaker, dims=1),
            "prompt_ids": _ids(name, "prompt_ids", prompt_ids, may_be_empty=bare),
            "flow_prompt_ids": _ids(name, "flow_prompt_ids", flow_prompt_ids, may_be_empty=bare),
            "flow_prompt_mel": _floats(name, "flow_prompt_mel", flow_prompt_mel, dims=2, may_be_empty=bare),
            "flow_speaker": _floats(name, "flow_speaker", flow_speaker, dims=1),
        }
        frames, tokens = parts["flow_prompt_mel"].shape[0], parts["flow_prompt_ids"].shape[0]
        if frames != FRAMES_PER_TOKEN * tokens:
            raise _bad(
                name, f"{frames} mel frames for {tokens} ids", f"{FRAMES_PER_TOKEN} frames for each id"
            )
        if family in SIZES:
            _check_sizes(name, family, parts)
        return cls(
            name=name,
            family=family,
            provenance=provenance,
            content_hash=_content_hash(family, parts),
            **parts,
        )

    def save(self, path: Path | str) -> None:
        """Write the voice as safetensors, whole or not at all."""
        metadata = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "name": self.name,
            "family": self.family,
            "provenance": self.provenance,
            "content_hash": self.content_hash,
        }
        write_whole(Path(path), to_safetensors({key: getattr(self, key) for key in _TENSORS}, metadata))

    @classmethod
    def load(cls, path: Path | str) -> Voice:
        """Read a voice back; a file that is damaged or something else is a `VoiceError`."""
        path = Path(path)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118, not a dict
        except (OSError, SafetensorError) as error:
            raise _bad(str(path), _first_line(error), "a readable voice file (safetensors)") from error
        if metadata.get("format") != FORMAT or metadata.get("version") != FORMAT_VERSION:
            got = f"format {metadata.get('format')!r}, version {metadata.get('version')!r}"
            raise _bad(str(path), got, f"format {FORMAT!r}, version {FORMAT_VERSION!r}")
        if set(tensors) != set(_TENSORS):
            raise _bad(str(path), f"tensors {', '.join(sorted(tensors))}", ", ".join(_TENSORS))
        voice = cls.checked(
            name=metadata.get("name", path.stem),
            family=metadata.get("family", ""),
            provenance=metadata.get("provenance", ""),
            **tensors,
        )
        if voice.content_hash != metadata.get("content_hash"):
            raise _bad(str(path), "a content hash that does not match the contents", "an undamaged file")
        return voice

    @classmethod
    def from_conds_pt(cls, path: Path | str, *, family: str, name: str = "default") -> Voice:
        """Upstream's built-in voice: {"t3": {...}, "gen": {...}}, each tensor with a leading batch of one."""
        path = Path(path)
        try:
            conds: Any = torch.load(path, map_location="cpu", weights_only=True)
            lm, flow = conds["t3"], conds["gen"]
            return cls.checked(
                name=name,
                family=family,
                speaker=lm["speaker_emb"].reshape(-1),
                prompt_ids=lm["cond_prompt_speech_tokens"].reshape(-1),
                flow_prompt_ids=flow["prompt_token"].reshape(-1),
                flow_prompt_mel=flow["prompt_feat"].squeeze(0),
                flow_speaker=flow["embedding"].reshape(-1),
                provenance=f"upstream {path.name}",
            )
        except (
            OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError, zipfile.BadZipFile,
            KeyError, TypeError, AttributeError, IndexError,
        ) as error:  # fmt: skip
            raise _bad(
                str(path), _first_line(error), "upstream's conds.pt: t3 and gen dictionaries"
            ) from error


def _check_sizes(name: str, family: str, parts: dict[str, Tensor]) -> None:
    speaker, flow_speaker, mel_bands, most_ids = SIZES[family]
    for part, size, axis in (
        ("speaker", speaker, 0),
        ("flow_speaker", flow_speaker, 0),
        ("flow_prompt_mel", mel_bands, 1),
    ):
        if parts[part].shape[axis] != size:
            raise _bad(name, f"{part} of shape {tuple(parts[part].shape)}", f"{size} numbers for {family!r}")
    if len(parts["prompt_ids"]) > most_ids:
        raise _bad(name, f"{len(parts['prompt_ids'])} prompt ids", f"at most {most_ids} for {family!r}")


def _floats(name: str, part: str, value: Tensor, *, dims: int, may_be_empty: bool = False) -> Tensor:
    empty = value.numel() == 0 and not may_be_empty
    if value.dim() != dims or empty or not value.is_floating_point():
        raise _bad(
            name,
            f"{part} of shape {tuple(value.shape)}, {value.dtype}",
            f"floats with {dims} axes" + ("" if may_be_empty else ", not empty"),
        )
    if not torch.isfinite(value).all():
        raise _bad(name, f"{part} with NaN or infinite numbers", "finite numbers")
    return value.detach().to("cpu", torch.float32, copy=True).contiguous()


def _ids(name: str, part: str, value: Tensor, *, may_be_empty: bool) -> Tensor:
    empty = value.numel() == 0 and not may_be_empty
    if value.dim() != 1 or empty or value.is_floating_point() or value.dtype == torch.bool:
        raise _bad(
            name,
            f"{part} of shape {tuple(value.shape)}, {value.dtype}",
            "whole numbers with one axis" + ("" if may_be_empty else ", not empty"),
        )
    ids = value.detach().to("cpu", torch.int64, copy=True).contiguous()
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= SPEECH_CODES):
        raise _bad(
            name,
            f"{part} from {int(ids.min())} to {int(ids.max())}",
            f"speech ids from 0 to {SPEECH_CODES - 1}",
        )
    return ids


def _content_hash(family: str, parts: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(family.encode())
    for key in _TENSORS:
        digest.update(f"{key}{tuple(parts[key].shape)}".encode())
        digest.update(parts[key].numpy().tobytes())
    return digest.hexdigest()


def _bad(name: str, got: str, allowed: str) -> VoiceError:
    return VoiceError(
        f"not a usable voice: {name}", got=got, allowed=allowed, fix="Make the voice again from its clip."
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().split("\n")[0]
