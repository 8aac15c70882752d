"""Speech tokens to mel frames on MLX, whole or as they arrive: the counterpart of backends/torch/mel_stream.py."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
import numpy as np

from nightingale.backends.mlx.philox_arrays import key_words, normal
from nightingale.backends.mlx.rendering.block_state import FlowPast
from nightingale.backends.mlx.rendering.flow_network import MlxFlow
from nightingale.backends.shared.token_windows import TokenWindow, TokenWindows, prompt_block
from nightingale.decoding.philox import stream_key
from nightingale.voices.voice import Voice


class PromptPast(NamedTuple):
    """A voice's prompt after the flow: made once, shared by every stream in that voice."""

    tokens: int
    """The prompt's tokens in `past`; its last few wait for the tokens they look ahead to."""
    past: FlowPast | None
    """None if the prompt is too short."""

    @property
    def nbytes(self) -> int:
        return self.past.nbytes if self.past else 0


def prepare_prompt(flow: MlxFlow, voice: Voice) -> PromptPast:
    """Render the voice's prompt alone. Its noise is the voice's own, so every request finds the same past."""
    block = prompt_block(voice)
    if block is None:
        return PromptPast(0, None)
    key = key_words(stream_key(0, f"prompt/{voice.content_hash}"))[0]
    _, past = _render(flow, voice, block, key, None)
    mx.eval(past.arrays)
    return PromptPast(block.tokens, past)


class FrameStream:
    """Render the mel of one utterance from speech ids as they arrive, one block with each push.

    prompt: the voice's, for a stream; None to collect ids and render them whole at the end.
    """

    def __init__(self, flow: MlxFlow, voice: Voice, *, seed: int, prompt: PromptPast | None) -> None:
        self._flow, self._voice, self._streaming = flow, voice, prompt is not None
        prompt = prompt or PromptPast(0, None)
        self._past, self._key = prompt.past, key_words(stream_key(seed, "flow"))[0]
        block_causal = flow.config.block_causal
        self._blocks = TokenWindows(voice, prompt_tokens=prompt.tokens, block_causal=block_causal)

    def push(self, ids: list[int], *, final: bool) -> mx.array:
        """Return the mel (1, frames, bands) of the ids but, unless `final`, the last three."""
        block = self._blocks.push(ids, final=final, wait=not (self._streaming or final))
        if block is None:
            return mx.zeros((1, 0, self._flow.config.mel_bands))
        store = self._flow.config.block_causal
        mel, past = _render(self._flow, self._voice, block, self._key, self._past, store=store, final=final)
        self._past = None if final else past
        return mel[:, block.fresh]

    def state(self) -> list[mx.array]:
        """Return what must be evaluated with a block, so that no graph grows from block to block."""
        return self._past.arrays if self._past else []


def _render(
    flow: MlxFlow,
    voice: Voice,
    block: TokenWindow,
    key: mx.array,
    past: FlowPast | None,
    *,
    store: bool = True,
    final: bool = False,
) -> tuple[mx.array, FlowPast]:
    """Return the mel (1, frames, bands) of a block, and the state after it."""
    frames = block.frames
    return flow.render_block(
        block.ids,
        lookahead=block.lookahead,
        prompt_mel=mx.array(voice.flow_prompt_mel[frames].astype(np.float32)),
        speaker=mx.array(voice.flow_speaker.astype(np.float32)),
        noise=normal(key, frames.start, frames.stop - frames.start, flow.config.mel_bands),
        past=past,
        advance=block.advance,
        store=store,
        final=final,
    )
