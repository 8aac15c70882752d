"""Speech tokens to samples in PyTorch, one block at a time: the reference renderer."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor

from nightingale.backends.base import Block, BlockCut
from nightingale.backends.shared.pipeline import CutStream
from nightingale.backends.shared.recorded_mel import RecordedMel
from nightingale.backends.torch.mel_stream import MelStream, PromptState, prepare_prompt
from nightingale.backends.torch.sample_stream import SampleStream, open_sample_stream
from nightingale.decoding.lru import BytesLRU
from nightingale.models.chatterbox.build import Vocoder
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.types import Samples
from nightingale.voices.voice import Voice

PROMPT_CACHE_BYTES = 3 << 30
"""Limit of cached voice prompts. Ten seconds of a guided flow's prompt take 2.3 GB in float32."""


class TorchRenderStream(CutStream):
    """One utterance: mel frames, then samples."""

    def __init__(self, mel: MelStream, samples: SampleStream, *, seed: int) -> None:
        self.mel, self.samples, self.seed = mel, samples, seed
        self.own_mel: MelStream | None = None
        """The same tokens in the voice of the recording that they were read from, if there is one."""
        self.recorded = RecordedMel()

    def batch_key(self, cut: BlockCut) -> Hashable:  # noqa: ARG002, a protocol
        return id(self)


class TorchRenderer:
    """Render each block when it is submitted: `MelStream`, then a `SampleStream`."""

    max_batch = 1
    max_in_flight = 1
    decoder_threads: int | None = None

    def __init__(self, flow: Flow, vocoder: Vocoder, *, streaming: bool) -> None:
        self._flow, self._vocoder, self._streaming = flow, vocoder, streaming
        self._prompts: BytesLRU[str, PromptState] = BytesLRU(PROMPT_CACHE_BYTES)

    def open(self, voice: Voice, *, seed: int) -> TorchRenderStream:
        prompt = None
        if self._streaming:
            prompt = self._prompts.get(voice.content_hash, lambda: prepare_prompt(self._flow, voice))
        return TorchRenderStream(
            MelStream(self._flow, voice, seed=seed, streaming=self._streaming, prompt=prompt),
            open_sample_stream(self._vocoder, seed=seed, streaming=self._streaming),
            seed=seed,
        )

    def render(self, blocks: Sequence[Block]) -> Future[list[Samples]]:
        future: Future[list[Samples]] = Future()
        rendered = []
        for block in blocks:
            self.mark_started(block)
            rendered.append(self.samples(block, self.mel(block)))
        future.set_result(rendered)
        return future

    def decoder_busy(self, busy: bool) -> None: ...

    def prepare(self) -> bool:
        return False

    def close(self) -> None: ...

    def mark_started(self, block: Block) -> None:
        """Cut later blocks as those of an utterance that has started."""
        block.stream.started = block.stream.started or bool(block.tokens)

    def mel(self, block: Block) -> Tensor:
        started = time.perf_counter()
        mel: Tensor = block.stream.mel.push(block.tokens, final=block.final)
        if block.recorded is not None:
            mel = self._with_recorded(mel, block)
        block.record("flow", started)
        return mel

    @torch.inference_mode()
    def _with_recorded(self, mel: Tensor, block: Block) -> Tensor:
        """Add what speech tokens do not keep of the recording (backends/shared/recorded_mel.py)."""
        stream: TorchRenderStream = block.stream
        assert block.recorded is not None
        stream.own_mel = stream.own_mel or MelStream(
            self._flow, block.recorded.voice, seed=stream.seed, streaming=self._streaming
        )
        own = stream.own_mel.push(block.tokens, final=block.final)
        missing = stream.recorded.missing(block, own.float().cpu().numpy().T, mel.shape[1])
        return mel + torch.from_numpy(missing.T).to(mel)

    def samples(self, block: Block, mel: Tensor) -> Samples:
        started = time.perf_counter()
        samples: Samples = block.stream.samples.push(mel, final=block.final)
        block.record("vocoder", started)
        return samples
