"""The backend contract: what the engine asks of anything that runs the networks.

A backend serves up to three roles. A *decoder* turns prompts into speech tokens (T3), a *renderer* turns
speech tokens into samples (flow and vocoder), and *encoders* turn a reference clip into the arrays of a voice.
The engine may take each role from another backend: ONNX Runtime decodes while PyTorch renders, for example.

Everything that crosses this boundary is a number or a numpy array. Device memory stays inside the backend.
Read this file before you add a backend; `docs/architecture.md` lists the steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from nightingale.backends.profiles import Profile
from nightingale.clocks import CLOCKS
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.host_decoder import DecodeRow, Tokens
from nightingale.decoding.kv_cache_size import KVCacheSize
from nightingale.install import install_command
from nightingale.models.chatterbox.presets import Preset
from nightingale.models.defaults import ModelDefaults
from nightingale.types import Samples
from nightingale.voices.voice import Voice

TORCH_MISSING: Final = "PyTorch is not installed"
Role = Literal["decoder", "renderer"]
"""The two roles that a profile has preferences for."""
DEFAULT_SLOTS: Final = 8
"""Utterances that are decoded at once, where neither the profile nor the device says how many."""
Made = TypeVar("Made")


def how_to_install_torch() -> str:
    return (
        f"Install PyTorch: {install_command('torch')}. On a machine without a GPU, add "
        "--extra-index-url https://download.pytorch.org/whl/cpu to leave out CUDA's libraries."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Describe the device that computes, as far as the choice of a backend depends on it."""

    device: str
    """The device as PyTorch spells it: cpu, cuda:0."""
    name: str
    """The device's name for people."""
    instructions: str
    """A CPU's vector instructions, such as AVX512, or a GPU's architecture, such as sm_90."""
    problem: str | None = None
    """The reason why a GPU that is present cannot be used, if any."""
    free_bytes: int | None = None
    """Free GPU memory."""
    auto_reason: str | None = None
    """The reason why `device="auto"` took it and looked at no GPU, if it did so."""

    @property
    def kind(self) -> str:
        return self.device.partition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Describe a model without its weights: enough to choose a backend and to check a request."""

    name: str
    preset: Preset
    defaults: ModelDefaults
    synthetic: bool = False
    """True if it has no weights and makes test signals only (backends/noise)."""

    @property
    def guidable(self) -> bool:
        """True if T3 can run two rows per utterance for classifier-free guidance."""
        return "cfg_weight" not in self.defaults.ignored

    @property
    def rows_per_slot(self) -> int:
        return 2 if self.guidable else 1

    @property
    def max_prompt_positions(self) -> int:
        return self.preset.t3.prompt_length(self.defaults.max_text_ids)

    @property
    def max_positions(self) -> int:
        """The longest sequence T3 may hold: the longest prompt and the longest utterance."""
        return self.max_prompt_positions + self.defaults.max_new_tokens

    def kv_cache_bytes(self, slots: int, itemsize: int) -> int:
        """Size of a dense KV cache for `slots` utterances of the longest kind."""
        backbone = self.preset.t3.backbone
        rows = slots * self.rows_per_slot
        return 2 * rows * self.max_positions * backbone.layers * backbone.width * itemsize


class ModelSource:
    """Hold where a model's weights are, and share what backends made of them.

    Two roles of one engine often need the same weights, and one loaded model may serve several engines. So a
    backend asks `shared` for what it loads: the first call loads it, later calls get the same object.
    """

    def __init__(
        self,
        info: ModelInfo,
        files: Mapping[str, Path],
        *,
        packed: bool = False,
        loaded: Mapping[str, Any] | None = None,
    ) -> None:
        """Args:
        info: The model's description.
        files: Paths of the weights by role: "t3", "s3gen", "voice_encoder".
        packed: The files are in wren's compact format and must be unpacked.
        loaded: Objects that exist already, by the key that backends ask for.
        """
        self.info, self.files, self.packed = info, files, packed
        self._made: dict[str, Any] = dict(loaded or {})
        self._lock = threading.RLock()

    def shared(self, key: str, make: Callable[[], Made]) -> Made:
        """Return the object under `key`, made by the first caller."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            made: Made = self._made[key]
            return made

    def loaded(self, key: str) -> Any:
        """Return the object under `key` if it exists already."""
        return self._made.get(key)

    def with_info(self, info: ModelInfo) -> ModelSource:
        """Return a source with another description that shares everything that was loaded."""
        other = ModelSource(info, self.files, packed=self.packed)
        other._made, other._lock = self._made, self._lock
        return other


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The profile, the device and the precision that a backend is opened for."""

    profile: Profile
    machine: Machine
    precision: str
    """float32, bfloat16, int8, or one that the backend names (`profiles.PRECISIONS`)."""
    threads: int | None = None
    """CPU threads for this role; None leaves the choice to the backend."""
    voice: Voice | None = None
    """A voice to warm up with."""

    @property
    def slots(self) -> int:
        """Utterances that are decoded at once."""
        return self.profile.slots or DEFAULT_SLOTS


class Decoder(Protocol):
    """Turn prompts into speech tokens, for all slots in use at once.

    Slots in use have no gaps. All methods are called from one thread, after `start`.
    """

    max_prefills: int
    """Prompts that may be prefilled between two decode steps."""
    kv_cache_size: KVCacheSize
    """KV cache bytes that utterances use."""
    traces_attention: bool
    """True if it gives the trace of a prompt its queries and keys, so that words can be timed."""

    def start(self) -> None:
        """Prepare the calling thread, which will call everything else."""

    def prefill(self, slot: int, decoding: Decoding) -> list[int]:
        """Read `decoding.prompt` into a slot and return the first token if it is known already."""

    def decode(self, rows: Sequence[DecodeRow]) -> list[Tokens]:
        """Advance every row and return its new tokens. The caller appends them to the decoding."""

    def release(self, slot: int) -> None:
        """Free a slot whose utterance has ended."""

    def move(self, source: int, target: int) -> None:
        """Move an utterance to a free slot, so that slots in use have no gaps."""

    def reset(self, slot: int) -> None:
        """Clear a slot after an error, so that NaN values cannot reach its next utterance."""

    def prepare(self) -> bool:
        """Prepare for one more size of batches, while there is no work; return False once nothing is left."""


class BlockCut(NamedTuple):
    """The next block of an utterance: how many tokens it takes, and whether it is the last one."""

    tokens: int
    final: bool


class RenderStream(Protocol):
    """One utterance between speech tokens and samples."""

    first_block_tokens: int | None
    """Tokens of the first block that suit the device; None: no preference."""
    prefers_large_batches: bool
    """True if a long block costs hardly more than a short one, and a full batch much less per block: then blocks
    grow faster, and take all tokens that are there while other requests run."""

    def next_cut(self, waiting: int, *, finished: bool, wanted: int) -> BlockCut | None:
        """Return what the next block takes of `waiting` tokens, or None while there are too few.

        A block that is not the last should have `wanted` tokens besides the encoder's lookahead. The result
        depends on the tokens alone and never on timing, so that the audio is reproducible.
        """

    def batch_key(self, cut: BlockCut) -> Hashable:
        """Return a key that is equal for blocks that can be rendered in one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The recording that the speech tokens of a block were read from (backends/shared/recorded_mel.py)."""

    mel: NDArray[np.float32]
    """(frames, bands), of the block's tokens; NaN where it is not known."""
    voice: Voice
    """The voice of its speaker, without a prompt."""

    def part(self, start: int, end: int) -> Recorded:
        """Return the recording of the tokens from `start` to `end`."""
        frames = CLOCKS.frames_per_token
        return Recorded(mel=self.mel[frames * start : frames * end], voice=self.voice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Speech tokens of one utterance that are rendered together."""

    stream: Any
    """The stream that `Renderer.open` returned."""
    tokens: list[int]
    first: bool
    final: bool
    alone: bool
    """True if no other request is being served."""
    recorded: Recorded | None = None
    """Once it is given, it is given for all later blocks of the utterance. Models convert recordings without it unless
    their defaults say otherwise (`ModelDefaults.renders_recorded_mel`); renderers of other models may leave it out."""
    record: Callable[[str, float], float] = field(default=lambda stage, started: started)  # noqa: ARG005
    """Books the time since `started` (time.perf_counter) on a stage of the request's metrics."""


class RenderFuture(Protocol):
    """Blocks that are being rendered; `concurrent.futures.Future` fits."""

    def done(self) -> bool: ...

    def result(self) -> list[Samples]:
        """Wait if necessary and return the samples of each block."""


class Renderer(Protocol):
    """Turn blocks of speech tokens into samples."""

    max_batch: int
    """Blocks that one `render` call may take."""
    max_in_flight: int
    """`render` calls whose results may be outstanding."""
    decoder_threads: int | None
    """CPU threads that are left for the decoder; None leaves the choice to it."""

    def open(self, voice: Voice, *, seed: int) -> RenderStream:
        """Begin an utterance."""

    def render(self, blocks: Sequence[Block]) -> RenderFuture:
        """Render blocks with equal batch keys. If this raises, no stream has changed."""

    def decoder_busy(self, busy: bool) -> None:
        """Tell whether the decoder has work. This may change when blocks are rendered, never their samples."""

    def prepare(self) -> bool:
        """Prepare for one size of batches that may come; return False once there is nothing left to prepare."""

    def close(self) -> None:
        """Stop; nothing more will be rendered."""


class Encoders(Protocol):
    """The networks that make a voice from a reference clip."""

    def tokenize(self, samples_16k: Samples, max_tokens: int | None = None) -> NDArray[np.int64]:
        """Return the speech tokens of a clip, 25 per second."""

    def speaker(self, samples_16k: Samples) -> NDArray[np.float32]:
        """Return T3's speaker embedding."""

    def flow_speaker(self, samples_16k: Samples) -> NDArray[np.float32] | None:
        """Return the flow's speaker embedding; None where it shares T3's."""

    def flow_mel(self, samples_24k: Samples) -> NDArray[np.float32]:
        """Return the mel frames (frames, bands) that condition the flow."""


class Backend(Protocol):
    """One way to run the networks. `nightingale.backends.BACKENDS` lists all of them.

    A backend that inherits from this brings no device, leaves no threads and has no encoders unless it says so.
    """

    name: str
    description: str
    """A short description for `nightingale doctor --plan`."""
    device_kinds: tuple[str, ...]
    """Kinds of device it runs on, such as "cuda"; empty for any kind."""

    def probe(self, device: str) -> Machine | None:  # noqa: ARG002, for those that override it
        """Describe a device this backend brings, such as "cuda:0" or "auto"; None if it has no such device."""
        return None

    def unsupported_reason(self, role: Role, model: ModelInfo, setup: Setup) -> str | None:
        """Say why this backend cannot take a role; None if it can. Needs no weights."""

    def decoder_threads(self) -> int | None:
        """Return the CPU threads that its renderer leaves for the decoder, if all its renderers leave as many.

        Then a decoder can be opened while the renderer is being opened in another thread.
        """
        return None

    def open_decoder(self, source: ModelSource, setup: Setup) -> Decoder: ...

    def open_renderer(self, source: ModelSource, setup: Setup) -> Renderer: ...

    def open_encoders(self, source: ModelSource, setup: Setup) -> Encoders | None:  # noqa: ARG002
        """Open the encoders; None if this backend has none."""
        return None
