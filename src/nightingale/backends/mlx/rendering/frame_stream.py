"""Speech tokens to mel frames on MLX, whole or as they arrive: the counterpart of backends/torch/mel_stream.py."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from nightingale.backends.mlx.philox_arrays import key_words, normal
from nightingale.backends.mlx.rendering.flow_network import MlxFlow
from nightingale.backends.mlx.rendering.flow_state import FlowPast
from nightingale.clocks import CLOCKS
from nightingale.decoding.philox import stream_key
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.voices.voice import Voice

CONTEXT_TOKENS = 8
"""Tokens that a bidirectional flow renders again before each block, as its left context."""
FRAMES = CLOCKS.frames_per_token


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
    tokens = max(0, len(voice.flow_prompt_ids) - LOOKAHEAD_TOKENS)
    if tokens == 0:
        return PromptPast(0, None)
    key = key_words(stream_key(0, f"prompt/{voice.content_hash}"))[0]
    ids = voice.flow_prompt_ids.tolist()
    _, past = _render(flow, voice, ids, start=0, tokens=tokens, key=key, past=None)
    mx.eval(past.arrays)
    return PromptPast(tokens, past)


class FrameStream:
    """Render the mel of one utterance from speech ids as they arrive, one block with each push.

    prompt: the voice's, for a stream; None to collect ids and render them whole at the end.
    """

    def __init__(self, flow: MlxFlow, voice: Voice, *, seed: int, prompt: PromptPast | None) -> None:
        self._flow, self._voice, self._streaming = flow, voice, prompt is not None
        prompt = prompt or PromptPast(0, None)
        self._past, self._prompt_tokens = prompt.past, prompt.tokens
        self._key = key_words(stream_key(seed, "flow"))[0]
        # Tokens are counted from the prompt's first. `_ids` holds those from `_start` on, where the next block
        # begins; those before `_done` have been returned, or were the prompt's.
        self._start, self._done = prompt.tokens, len(voice.flow_prompt_ids)
        self._ids: list[int] = voice.flow_prompt_ids[prompt.tokens :].tolist()

    def push(self, ids: list[int], *, final: bool) -> mx.array:
        """Return the mel (1, frames, bands) of the ids but, unless `final`, the last three."""
        self._ids += ids
        start = self._start
        ready = start + len(self._ids) - (0 if final else LOOKAHEAD_TOKENS)
        if ready <= self._done or not (self._streaming or final):
            return mx.zeros((1, 0, self._flow.config.mel_bands))
        exact = self._flow.config.block_causal
        following = ready if exact else max(self._prompt_tokens, ready - CONTEXT_TOKENS)
        mel, past = _render(
            self._flow,
            self._voice,
            self._ids,
            start=start,
            tokens=ready - start,
            key=self._key,
            past=self._past,
            advance=Fraction(following - start, ready - start),
            store=exact,
            final=final,
        )
        fresh = mel[:, FRAMES * (self._done - start) :]
        self._past = None if final else past
        self._start, self._done = following, ready
        del self._ids[: following - start]
        return fresh

    def state(self) -> list[mx.array]:
        """Return what must be evaluated with a block, so that no graph grows from block to block."""
        return self._past.arrays if self._past else []


def _render(
    flow: MlxFlow,
    voice: Voice,
    ids: list[int],
    *,
    start: int,
    tokens: int,
    key: mx.array,
    past: FlowPast | None,
    advance: Fraction = Fraction(1),
    store: bool = True,
    final: bool = False,
) -> tuple[mx.array, FlowPast]:
    """Render `tokens` tokens from `start` on, counted from the prompt's first; later ids are the lookahead."""
    first, last = FRAMES * start, FRAMES * (start + tokens)
    return flow.render_block(
        ids,
        lookahead=len(ids) - tokens,
        prompt_mel=mx.array(voice.flow_prompt_mel[first:last].astype(np.float32)),
        speaker=mx.array(voice.flow_speaker.astype(np.float32)),
        noise=normal(key, first, last - first, flow.config.mel_bands),
        past=past,
        advance=advance,
        store=store,
        final=final,
    )
