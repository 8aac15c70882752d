"""Speech ids to samples, a block at a time: the seam between the worker and whatever renders.

A block is launched, and its sound taken when it is ready. The plain studio renders at the launch, one block
at a time. A faster one (backends/cuda/renderer.py) renders several utterances together, beside T3, and is ready later.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from torch import Tensor

from nightingale.audio.crossfade import Crossfade
from nightingale.backends.torch.mel_stream import MelStream, PromptState, prepare_prompt
from nightingale.engine.session import Timing
from nightingale.backends.torch.sample_stream import Excited, SampleStream, harmonic_phase
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.types import Samples
from nightingale.voices.voice import Voice

PROMPTS_KEPT_BYTES = 3 << 30
"""How much may be remembered of voices' prompts. Ten seconds of a guided flow's take 2.3 GB in float32."""
Cut = tuple[int, bool]
"""How many ids a block takes, and whether it is the last of its utterance."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Threads for the products of each stage."""

    t3: int
    flow: int
    vocoder: int
    alone: int
    """Where the others have nothing to do: for the vocoder's last block."""


class RenderStream(Protocol):
    """One utterance on its way from ids to samples."""

    largest_in_company: bool
    """Whether blocks after the first are as large as they come while others are speaking too: fewer, larger
    ones serve everybody where several are rendered in the time of one. Else they are cut as if nobody else
    were there, and sound the same."""

    def cut(self, waiting: int, *, finished: bool, wanted: int) -> Cut | None:
        """What the next block takes of so many ids that wait; None while there are too few. wanted: a block
        that is not the last should have so many, besides those that are looked ahead to."""

    def company(self, cut: Cut) -> Hashable:
        """Blocks of which this is the same may be launched together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    rendering: Any
    """What the studio opened."""
    ids: list[int]
    final: bool
    alone: bool
    """Nobody else is being served."""
    timing: Timing


class RenderFuture(Protocol):
    """Blocks that were launched."""

    @property
    def ready(self) -> bool: ...

    def take(self) -> list[Samples]:
        """Of each block. Waits if they are not ready."""


class Renderer(Protocol):
    together: int
    """So many blocks may be launched at once."""
    under_way: int
    """So many launches may not be taken yet."""
    shares: Shares | None
    """Threads for each stage where they work beside each other; None where all are T3's."""

    def open(self, voice: Voice, *, seed: int) -> RenderStream:
        """An utterance that begins."""

    def launch(self, blocks: Sequence[Block]) -> RenderFuture:
        """Blocks of one company, in this order for each utterance. If it fails, nothing has happened."""

    def t3_works(self, busy: bool) -> None:
        """PromptText whenever that may have changed. What is heard must not depend on it, for the clock decides."""

    def close(self) -> None:
        """Nothing more will be launched."""


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Kept = TypeVar("Kept", bound=_Sized)


class Remembered(Generic[Kept]):
    """Something per voice, within bounds: the one that was not used for the longest time goes first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[str, Kept] = {}

    def get(self, voice: Voice) -> Kept | None:
        found = self._kept.pop(voice.content_hash, None)
        if found is not None:
            self._kept[voice.content_hash] = found
        return found

    def keep(self, voice: Voice, made: Kept) -> Kept:
        while self._kept and made.nbytes + sum(k.nbytes for k in self._kept.values()) > self._most_bytes:
            self._kept.pop(next(iter(self._kept)))
        self._kept[voice.content_hash] = made
        return made


class TorchRenderStream:
    largest_in_company = False  # one after the other: whoever has heard the first waits for the second

    def __init__(self, mel: MelStream, samples: SampleStream) -> None:
        self.mel, self.samples = mel, samples
        self.begun = False

    def cut(self, waiting: int, *, finished: bool, wanted: int) -> Cut | None:
        size = wanted + (0 if self.begun else LOOKAHEAD_TOKENS)
        # Never more than was wanted, however long the block has waited, and no sooner the last if the end has
        # become known in the meantime: sound must not depend on the clock.
        if waiting >= size:
            return size, False
        return (waiting, True) if finished else None

    def company(self, cut: Cut) -> Hashable:  # noqa: ARG002, a protocol
        return id(self)


class Done:
    """A sound that was rendered when it was launched."""

    ready = True

    def __init__(self, samples: list[Samples]) -> None:
        self._samples = samples

    def take(self) -> list[Samples]:
        return self._samples


class TorchRenderer:
    """The reference: `MelStream`, then `SampleStream`, in the precision of the weights."""

    together = 1
    under_way = 1
    shares: Shares | None = None

    def __init__(self, flow: Flow, hift: Hift, *, streaming: bool) -> None:
        self._flow, self._hift, self._streaming = flow, hift, streaming
        self._prompts: Remembered[PromptState] = Remembered(PROMPTS_KEPT_BYTES)

    def open(self, voice: Voice, *, seed: int) -> TorchRenderStream:
        prompt = self._prompt(voice) if self._streaming else None
        return TorchRenderStream(
            MelStream(self._flow, voice, seed=seed, streaming=self._streaming, prompt=prompt),
            SampleStream(self._hift, seed=seed, streaming=self._streaming),
        )

    def _prompt(self, voice: Voice) -> PromptState:
        """What the flow remembers of the voice's prompt: computed once per voice."""
        return self._prompts.get(voice) or self._prompts.keep(voice, prepare_prompt(self._flow, voice))

    def launch(self, blocks: Sequence[Block]) -> Done:
        heard = []
        for block in blocks:
            self.note(block)
            heard.append(self.samples(block, self.excite(block, self.mel(block))))
        return Done(heard)

    def t3_works(self, busy: bool) -> None:
        """It renders while T3 waits."""

    def close(self) -> None:
        """It holds nothing."""

    def note(self, block: Block) -> None:
        """Blocks after this one are cut as those of an utterance that has begun."""
        block.rendering.begun = block.rendering.begun or bool(block.ids)

    def mel(self, block: Block) -> Tensor:
        at = time.perf_counter()
        mel: Tensor = block.rendering.mel.push(block.ids, final=block.final)
        block.timing.lap("flow", at)
        return mel

    def excite(self, block: Block, mel: Tensor) -> Excited:
        at = time.perf_counter()
        excited: Excited = block.rendering.samples.excite(mel, final=block.final)
        block.timing.lap("vocoder", at)
        return excited

    def samples(self, block: Block, excited: Excited) -> Samples:
        at = time.perf_counter()
        samples: Samples = block.rendering.samples.sound(excited)
        block.timing.lap("vocoder", at)
        return samples


class BlockRenderer(Protocol):
    """`BlockRenderer` in backends/cuda/renderer.py, as the studio uses it."""

    @property
    def prompts(self) -> tuple[int, int]: ...
    def hear(self, name: str, ids: Tensor, mel: Tensor, speaker: Tensor) -> Any: ...
    def begin(self, memory: Any, *, seed: int, phase: Tensor) -> Any: ...
    def cut(self, spoken: Any, waiting: int, *, finished: bool, wanted: int) -> Cut | None: ...
    def company(self, spoken: Any, ids: int, *, final: bool) -> Hashable: ...
    def launch(self, blocks: Sequence[tuple[Any, list[int], bool]]) -> Any: ...


class CudaRenderStream:
    largest_in_company = True

    def __init__(self, renderer: BlockRenderer, spoken: Any) -> None:
        self._renderer, self.spoken = renderer, spoken
        self.crossfade = Crossfade()

    def cut(self, waiting: int, *, finished: bool, wanted: int) -> Cut | None:
        return self._renderer.cut(self.spoken, waiting, finished=finished, wanted=wanted)

    def company(self, cut: Cut) -> Hashable:
        if not cut[0] and not self.spoken.unrendered:
            return id(self)  # nothing is to be heard
        return self._renderer.company(self.spoken, cut[0], final=cut[1])


class GraphSound:
    def __init__(self, blocks: Sequence[Block], pending: Any) -> None:
        self._blocks, self._pending = blocks, pending
        self._at = time.perf_counter()

    @property
    def ready(self) -> bool:
        return bool(self._pending.ready)

    def take(self) -> list[Samples]:
        rendered = self._pending.take()
        heard = []
        for block, sound in zip(self._blocks, rendered, strict=True):
            block.timing.lap("render", self._at)
            crossfade = block.rendering.crossfade
            end = crossfade.end(sound.known, final=block.final)
            heard.append(crossfade.join(sound.samples, start=sound.start, end=end))
        return heard


class CudaGraphRenderer:
    """Blocks of fixed sizes, many at once, beside T3.

    A voice whose prompt is shorter or longer than there are graphs for is rendered by the plain studio.
    """

    under_way = 2  # one is computed, and the next one waits behind it
    shares: Shares | None = None

    def __init__(
        self, renderer: BlockRenderer, plain: TorchRenderer, hift: HiftConfig, *, together: int, kept_bytes: int
    ) -> None:
        self._renderer, self._plain, self._hift = renderer, plain, hift
        self.together = together
        self._memories: Remembered[Any] = Remembered(kept_bytes)

    def takes(self, voice: Voice) -> bool:
        shortest, longest = self._renderer.prompts
        return shortest <= len(voice.flow_prompt_ids) <= longest

    def open(self, voice: Voice, *, seed: int) -> RenderStream:
        if not self.takes(voice):
            return self._plain.open(voice, seed=seed)
        phase = harmonic_phase(self._hift, seed)[0]
        return CudaRenderStream(
            self._renderer, self._renderer.begin(self.memory(voice), seed=seed, phase=phase)
        )

    def memory(self, voice: Voice) -> Any:
        """What the flow remembers of the voice's prompt: computed once per voice."""
        return self._memories.get(voice) or self._memories.keep(
            voice,
            self._renderer.hear(
                f"prompt/{voice.content_hash}",
                voice.flow_prompt_ids,
                voice.flow_prompt_mel,
                voice.flow_speaker,
            ),
        )

    def launch(self, blocks: Sequence[Block]) -> RenderFuture:
        if isinstance(blocks[0].rendering, TorchRenderStream):
            return self._plain.launch(blocks)
        if not blocks[0].ids and not blocks[0].rendering.spoken.unrendered:
            return Done([np.zeros(0, np.float32) for _ in blocks])  # nothing to be heard
        pending = self._renderer.launch([(b.rendering.spoken, b.ids, b.final) for b in blocks])
        sound, first = GraphSound(blocks, pending), blocks[0]
        if len(blocks) == 1 and first.alone and first.timing.tokens == len(first.ids):
            return Done(sound.take())  # somebody waits for his first sound: T3 would take half of the device
        return sound

    def t3_works(self, busy: bool) -> None:
        """The device shares itself out."""

    def close(self) -> None:
        """Its memory goes with it."""
