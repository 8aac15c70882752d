"""Speech tokens to mel on the GPU: windows of several utterances, each in its own voice, in one batch.

A window is a voice's prompt and, after it, tokens of an utterance: all of them, or a block of a stream with some
tokens before it as context. Nothing is kept of a prompt between windows; the estimator computes it again each
time. That costs less than it seems: a GPU needs large batches to be fast, and with cached keys and values of a
prompt (0.3 to 2.3 GB per voice) only utterances in one voice could share them, or blocks had to gather them. So any
windows make a batch, a new voice costs nothing, and a window is exactly what the reference renders
(dev/log-archive.md has the numbers of both ways).

The encoder runs in buckets of (windows, tokens), padded and masked; the estimator over packed rows
(packed_estimator.py). Without Triton, library calls compute one window after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nightingale.backends.cuda.flow.flow_steps import FRAMES, FlowSteps
from nightingale.backends.cuda.graphs import GraphCache, GraphMode, bucket_for, copy_async
from nightingale.backends.cuda.random import normal
from nightingale.backends.cuda.triton_support import KernelChoice, TritonKernels
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.s3gen.token_encoder import attention_mask, run_layers
from nightingale.voices.voice import Voice

MAX_ROWS = 12288
"""Frames of all windows in one evaluation of the estimator: larger batches are hardly faster per frame, and
others wait for them."""
BATCHES = (1, 4, 16)
TOKENS = (64, 128, 192, 256, 288, 320, 352, 384, 448, 512, 768, 1024, 1536, 2048)
"""Buckets of the encoder: small steps where a prompt of ten seconds and a block, or a sentence, end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoicePrompt:
    """A voice's prompt on the device."""

    ids: tuple[int, ...]
    mel: Tensor
    """(frames, bands), normalized."""
    speaker: Tensor
    """(bands,), projected."""

    @property
    def nbytes(self) -> int:
        return self.mel.nbytes + self.speaker.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowWindow:
    prompt: VoicePrompt
    ids: Sequence[int]
    """Tokens after the prompt, with those that the encoder looks ahead to."""
    tokens: int
    """The number of ids that are rendered: the others are the lookahead."""
    start: int
    """The number of the first id in its utterance, by which the noise is addressed."""
    key: int
    """The key of the noise."""

    @property
    def frames(self) -> int:
        return FRAMES * (len(self.prompt.ids) + self.tokens)


class FlowWindows:
    """batches, tokens: buckets of the encoder; kernels: "auto" is Triton on a GPU."""

    def __init__(
        self,
        steps: FlowSteps,
        *,
        mode: GraphMode | None = None,
        kernels: KernelChoice = "auto",
        batches: tuple[int, ...] = BATCHES,
        tokens: tuple[int, ...] = TOKENS,
    ) -> None:
        if steps.flow.config.block_causal:
            raise ConfigError("a block-causal flow is not rendered in windows", fix="Use the torch backend.")
        self.steps, self.batches, self.tokens = steps, batches, tokens

        def load() -> Any:
            from nightingale.backends.cuda.flow.packed_estimator import PackedEstimator

            estimator = PackedEstimator(steps, mode)
            estimator.compile()
            return estimator

        self.kernels = TritonKernels[Any](kernels, load, part="the flow", default=steps.device.type == "cuda")
        self._encoders: GraphCache[Tensor] = GraphCache(steps.device, mode)

    @torch.inference_mode()
    def prompt(self, voice: Voice) -> VoicePrompt:
        flow, device, dtype = self.steps.flow, self.steps.device, self.steps.dtype
        mel = copy_async(torch.tensor(voice.flow_prompt_mel), device).to(dtype)
        speaker = copy_async(torch.tensor(voice.flow_speaker), device).to(dtype)
        return VoicePrompt(
            ids=tuple(voice.flow_prompt_ids.tolist()),
            mel=flow.normalize_mel(mel),
            speaker=flow.speaker(speaker[None])[0],
        )

    @torch.inference_mode()
    def __call__(self, windows: Sequence[FlowWindow]) -> list[Tensor]:
        """Return the mel (bands, 2 · tokens) of each window, without the prompt's."""
        mels: list[Tensor] = []
        for batch in self._batches(windows):
            mels += self._render(batch)
        return mels

    def captures(self, shortest: int) -> Iterator[Callable[[], object]]:
        """Yield functions that capture the graphs of batches from so many frames on, up to the largest."""
        if (estimator := self.kernels.loaded) is not None:
            yield from estimator.captures(shortest, MAX_ROWS)

    def _batches(self, windows: Sequence[FlowWindow]) -> list[Sequence[FlowWindow]]:
        """Divide windows into batches of about equal size that are not too large for the graphs."""
        count = max(
            -(-len(windows) // self.batches[-1]), -(-sum(window.frames for window in windows) // MAX_ROWS)
        )
        size = -(-len(windows) // count)
        return [windows[at : at + size] for at in range(0, len(windows), size)]

    def _render(self, windows: Sequence[FlowWindow]) -> list[Tensor]:
        flow, bands = self.steps.flow, self.steps.flow.config.mel_bands
        mu = self._encode(windows)
        given = torch.zeros(len(windows), mu.shape[1], 3 * bands, dtype=mu.dtype, device=mu.device)
        given[..., :bands] = mu
        given[..., bands : 2 * bands] = torch.stack([window.prompt.speaker for window in windows])[:, None]
        for row, window in enumerate(windows):
            given[row, : len(window.prompt.mel), 2 * bands :] = window.prompt.mel
        if self.kernels.loaded is None:
            mels = [self._solve(window, given[row]) for row, window in enumerate(windows)]
        else:
            mels = self._solve_packed(self.kernels.loaded, windows, given)
        return [
            flow.denormalize_mel(mel[len(window.prompt.mel) : window.frames]).T
            for mel, window in zip(mels, windows, strict=True)
        ]

    def _solve(self, window: FlowWindow, given: Tensor) -> Tensor:
        """Return normalized mel (frames, bands) by library calls."""
        inputs = given[None, : window.frames].transpose(1, 2)
        numbers = copy_async(_frame_numbers(window), self.steps.device)
        keys = torch.full_like(numbers, window.key)
        noise = normal(keys, numbers, 1, given.shape[-1] // 3)[..., 0]
        return self.steps.solve(noise.T[None].to(given.dtype), inputs)[0].T

    def _solve_packed(self, estimator: Any, windows: Sequence[FlowWindow], given: Tensor) -> list[Tensor]:
        """Return the same for all windows at once. given: (windows, frames, 3 · bands)."""
        from nightingale.backends.cuda.flow.packed_estimator import PackedRows

        frames = [window.frames for window in windows]
        rows = PackedRows.of(frames)
        table = torch.zeros(3, rows.used, dtype=torch.int64)  # of each row: its place in `given`, number, key
        for number, (window, start) in enumerate(zip(windows, rows.starts, strict=True)):
            own = table[:, start : start + window.frames]
            own[0] = torch.arange(window.frames) + number * given.shape[1]
            own[1], own[2] = _frame_numbers(window), window.key
        place, numbers, keys = copy_async(table, self.steps.device)
        noise = normal(keys, numbers, 1, given.shape[-1] // 3)[..., 0]
        mel = estimator.solve(noise, given.flatten(0, 1).index_select(0, place), rows, frames)
        mel = mel.to(given.dtype, copy=True)
        return [mel[start : start + count] for start, count in zip(rows.starts, frames, strict=True)]

    def _encode(self, windows: Sequence[FlowWindow]) -> Tensor:
        """Return mu (windows, frames, bands), padded to the longest window or beyond."""
        ids = [[*window.prompt.ids, *window.ids] for window in windows]
        longest = max(map(len, ids))
        tokens = bucket_for(longest, self.tokens, what="tokens of a segment, the prompt's included")
        batch = bucket_for(len(windows), self.batches, what="windows")
        if (batch, tokens) not in self._encoders:
            inputs = {
                "ids": torch.zeros(batch, tokens, dtype=torch.int64),
                "lengths": torch.full((batch, 2), tokens),
            }
            name = f"the flow's encoder, {batch} windows of {tokens} tokens"
            self._encoders.capture((batch, tokens), name, self._encode_bucket, inputs)
        lengths = [[len(row), w.frames // FRAMES] for row, w in zip(ids, windows, strict=True)]
        padded = torch.tensor([row + [0] * (tokens - len(row)) for row in ids])
        device = self.steps.device
        mu = self._encoders[batch, tokens](
            ids=copy_async(padded, device), lengths=copy_async(torch.tensor(lengths), device)
        )
        return mu[: len(windows)]

    def _encode_bucket(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Run `Flow.encode`. lengths: (windows, 2), the ids that are known and those that are rendered."""
        steps, flow, encoder = self.steps, self.steps.flow, self.steps.flow.encoder
        at = torch.arange(ids.shape[1], device=ids.device)
        known, rendered = (at < lengths[:, which, None] for which in (0, 1))
        lower = steps.precision != steps.dtype
        with torch.autocast(ids.device.type, steps.precision, enabled=lower, cache_enabled=False):
            # Beyond the end the look-ahead reads zeros, as it does at the end of a sequence.
            x = encoder.embed(flow.input_embedding(ids)) * known[..., None]
            x = encoder.pre_lookahead_layer(x)
            x = run_layers(encoder.encoders, x, attention_mask(rendered, None), None)
            x = encoder.up_embed(encoder.up_layer(x))
            x = run_layers(encoder.up_encoders, x, attention_mask(rendered, None, repeats=FRAMES), None)
            mu: Tensor = flow.encoder_proj(encoder.after_norm(x))
        return mu.to(steps.dtype)


def _frame_numbers(window: FlowWindow) -> Tensor:
    """Return the numbers of a window's frames, counted from the prompt's first: those of whole rendering."""
    prompt, skipped = FRAMES * len(window.prompt.ids), FRAMES * window.start
    return torch.cat([torch.arange(prompt), torch.arange(prompt, window.frames) + skipped])
