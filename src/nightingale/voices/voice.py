"""A voice: the conditioning arrays of one speaker, as one immutable value.

A voice is made once from a reference clip (or read from upstream's `conds.pt`, see conds.py) and then travels
with each request. A model never stores one, so requests cannot mix up their voices. The arrays are numpy; the
file format is safetensors with metadata.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from nightingale.errors import VoiceError
from nightingale.files import as_path, write_whole
from nightingale.voices.conds import read_tensors

FORMAT: Final = "nightingale-voice"
FORMAT_VERSION: Final = "1"
SPEECH_CODES: Final = 6561
"""Speech ids are below this; the ids above it start and stop an utterance and have no sound."""
FRAMES_PER_TOKEN: Final = 2
SIZES: Final = {"chatterbox": (256, 192, 80, 150), "turbo": (256, 192, 80, 375)}
"""family -> speaker width, flow speaker width, mel bands, max prompt ids. "wren" may have any size, and needs
no prompts: its networks were trained on the speaker embeddings alone."""
FAMILIES: Final = (*SIZES, "wren")

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

_ARRAYS: Final = ("speaker", "prompt_ids", "flow_prompt_ids", "flow_prompt_mel", "flow_speaker")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Voice:
    """A speaker, for one model family. Build it with `Voice.checked`; equality is by content."""

    name: str
    family: str
    speaker: Floats
    """(256,): T3's speaker embedding."""
    prompt_ids: Ids
    """(n,): speech tokens of the clip, T3's prompt."""
    flow_prompt_ids: Ids
    """(m,): speech tokens of the clip, the flow's prompt."""
    flow_prompt_mel: Floats
    """(2m, 80): the mel frames of those tokens."""
    flow_speaker: Floats
    """(192,): the flow's speaker embedding."""
    provenance: str
    """The origin of the voice, for people to read."""
    content_hash: str
    """Hash of family and arrays; renaming a voice does not change it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Voice) and self.content_hash == other.content_hash

    def __hash__(self) -> int:
        return hash(self.content_hash)

    def __reduce__(self) -> tuple[Any, ...]:
        # Not numpy's way, which forgets that the arrays are read-only.
        parts = {key: getattr(self, key) for key in ("name", "family", "provenance", *_ARRAYS)}
        return partial(Voice.checked, **parts), ()

    @classmethod
    def checked(
        cls,
        *,
        name: str,
        family: str,
        speaker: Any,
        prompt_ids: Any,
        flow_prompt_ids: Any,
        flow_prompt_mel: Any,
        flow_speaker: Any,
        provenance: str = "",
    ) -> Voice:
        """Build a voice from anything numpy can read (arrays, CPU tensors, lists) and copy it.

        Raises:
            VoiceError: The parts have wrong shapes or types, or do not fit together.
        """
        if family not in FAMILIES:
            raise _bad(name, f"family {family!r}", ", ".join(FAMILIES))
        bare = family not in SIZES
        parts: dict[str, Any] = {
            "speaker": _array(name, "speaker", speaker),
            "prompt_ids": _array(name, "prompt_ids", prompt_ids, ids=True, may_be_empty=bare),
            "flow_prompt_ids": _array(name, "flow_prompt_ids", flow_prompt_ids, ids=True, may_be_empty=bare),
            "flow_prompt_mel": _array(name, "flow_prompt_mel", flow_prompt_mel, dims=2, may_be_empty=bare),
            "flow_speaker": _array(name, "flow_speaker", flow_speaker),
        }
        frames, tokens = len(parts["flow_prompt_mel"]), len(parts["flow_prompt_ids"])
        if frames != FRAMES_PER_TOKEN * tokens:
            got = f"{frames} mel frames for {tokens} ids"
            raise _bad(name, got, f"{FRAMES_PER_TOKEN} frames for each id")
        if family in SIZES:
            _check_sizes(name, family, parts)
        digest = hashlib.sha256(family.encode())
        for key in _ARRAYS:
            digest.update(f"{key}{parts[key].shape}".encode())
            digest.update(parts[key].tobytes())
        content_hash = digest.hexdigest()
        return cls(name=name, family=family, provenance=provenance, content_hash=content_hash, **parts)

    def save(self, path: Path | str) -> None:
        """Write the voice as safetensors, atomically."""
        write_whole(as_path(path), file_contents(self))

    @classmethod
    def load(cls, path: Path | str) -> Voice:
        """Read a voice file; raise VoiceError if it is damaged or something else."""
        path = as_path(path)
        try:
            with safe_open(path, framework="np") as file:
                metadata = file.metadata() or {}
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118, not a dict
        except (OSError, SafetensorError) as error:
            raise _bad(str(path), _first_line(error), "a readable voice file (safetensors)") from error
        if metadata.get("format") != FORMAT or metadata.get("version") != FORMAT_VERSION:
            got = f"format {metadata.get('format')!r}, version {metadata.get('version')!r}"
            raise _bad(str(path), got, f"format {FORMAT!r}, version {FORMAT_VERSION!r}")
        if set(arrays) != set(_ARRAYS):
            raise _bad(str(path), f"arrays {', '.join(sorted(arrays))}", ", ".join(_ARRAYS))
        voice = cls.checked(
            name=metadata.get("name", path.stem),
            family=metadata.get("family", ""),
            provenance=metadata.get("provenance", ""),
            **arrays,
        )
        if voice.content_hash != metadata.get("content_hash"):
            raise _bad(str(path), "a content hash that does not match the contents", "an undamaged file")
        return voice

    @classmethod
    def from_conds_pt(cls, path: Path | str, *, family: str, name: str = "default") -> Voice:
        """Read upstream's built-in voice; raise VoiceError if the file is damaged or something else."""
        path = as_path(path)
        try:
            conds = read_tensors(path)
            t3, flow = conds["t3"], conds["gen"]
            return cls.checked(
                name=name,
                family=family,
                speaker=t3["speaker_emb"].reshape(-1),
                prompt_ids=t3["cond_prompt_speech_tokens"].reshape(-1),
                flow_prompt_ids=flow["prompt_token"].reshape(-1),
                flow_prompt_mel=flow["prompt_feat"].squeeze(0),
                flow_speaker=flow["embedding"].reshape(-1),
                provenance=f"upstream {path.name}",
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            allowed = "upstream's conds.pt: t3 and gen dictionaries"
            raise _bad(str(path), _first_line(error), allowed) from error


def file_contents(voice: Voice) -> bytes:
    """Return the contents of a voice's file."""
    metadata = {"format": FORMAT, "version": FORMAT_VERSION}
    metadata |= {key: getattr(voice, key) for key in ("name", "family", "provenance", "content_hash")}
    return to_safetensors({key: getattr(voice, key) for key in _ARRAYS}, metadata)


def _check_sizes(name: str, family: str, parts: dict[str, NDArray[Any]]) -> None:
    *sizes, max_ids = SIZES[family]
    for part, size in zip(("speaker", "flow_speaker", "flow_prompt_mel"), sizes, strict=True):
        if parts[part].shape[-1] != size:
            raise _bad(name, f"{part} of shape {parts[part].shape}", f"{size} numbers for {family!r}")
    if len(parts["prompt_ids"]) > max_ids:
        raise _bad(name, f"{len(parts['prompt_ids'])} prompt ids", f"at most {max_ids} for {family!r}")


def _array(
    name: str, part: str, value: Any, *, dims: int = 1, ids: bool = False, may_be_empty: bool = False
) -> NDArray[Any]:
    """Return a read-only copy of finite floats, or of speech tokens."""
    array = np.asarray(value)
    empty = array.size == 0 and not may_be_empty
    if array.ndim != dims or empty or array.dtype.kind not in ("iu" if ids else "f"):
        expected = f"a {dims}-d array of {'integers' if ids else 'floats'}"
        expected += "" if may_be_empty else ", not empty"
        raise _bad(name, f"{part} of shape {array.shape}, {array.dtype}", expected)
    if ids and array.size and (array.min() < 0 or array.max() >= SPEECH_CODES):
        got = f"{part} from {array.min()} to {array.max()}"
        raise _bad(name, got, f"speech tokens from 0 to {SPEECH_CODES - 1}")
    if not np.isfinite(array).all():
        raise _bad(name, f"{part} with NaN or infinite numbers", "finite numbers")
    array = np.ascontiguousarray(array.astype(np.int64 if ids else np.float32))
    array.flags.writeable = False
    return array


def _bad(name: str, got: str, allowed: str) -> VoiceError:
    return VoiceError(
        f"not a usable voice: {name}", got=got, allowed=allowed, fix="Make the voice again from its clip."
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().split("\n")[0]
