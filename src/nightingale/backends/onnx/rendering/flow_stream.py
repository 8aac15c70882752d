"""Speech tokens to mel frames, block by block, over the graphs of flow_graph.py.

The flow is block-causal: a frame is rendered once its token and the three that the encoder looks ahead to are
known, and the stream equals the whole rendered with the same blocks. `backends/torch/mel_stream.py` is the
reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np

from nightingale.backends.onnx.numpy_weights import Floats, LazyFloats, PackedWeights, Weights, take_rows
from nightingale.backends.onnx.rendering.flow_graph import (
    ESTIMATOR,
    EstimatorGraph,
    TokenEncoderGraph,
    attention_names,
    stages,
)
from nightingale.backends.onnx.streaming_session import State, StreamingSession
from nightingale.clocks import CLOCKS
from nightingale.decoding.philox import normal, stream_key
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS, FlowConfig
from nightingale.voices.voice import Voice

FRAMES: Final = CLOCKS.frames_per_token
SOLVER_STEPS: Final = 2
CACHED_PROMPTS: Final = 8
"""Voices whose rendered prompts are kept; one takes a few megabytes."""
MIN_REACH: Final = 32
"""Distances that are encoded at first; the first block needs few."""
EMBEDDING: Final = "input_embedding.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCaches:
    """The state of a flow between two blocks. It is never written to: many streams may continue one."""

    encoder: State
    steps: tuple[State, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowBlock:
    """Tokens of one stream that are rendered together."""

    ids: list[int]
    """The block's tokens, then those that are looked ahead to."""
    tokens: int
    speaker: Floats
    """(mel,), of `FlowNetwork.speaker`."""
    prompt_mel: Floats
    """(frames, mel): of the block's first frames that belong to the voice's prompt."""
    noise: Floats
    """(frames, mel)."""
    state: FlowCaches


class FlowNetwork:
    """The flow's sessions, and what they read besides tokens."""

    def __init__(
        self, config: FlowConfig, weights: PackedWeights, *, threads: int, int8: bool = False
    ) -> None:
        """int8: compute products with int8 weights and inputs; in float32 otherwise."""
        self.config, floats = config, LazyFloats(weights.__getitem__)
        # Rows of the largest table are converted when they are read.
        self._embedding = weights[EMBEDDING]
        self._encoder = StreamingSession(TokenEncoderGraph(config, weights, int8=int8), threads)
        step = 1 / SOLVER_STEPS
        self._estimator = StreamingSession(EstimatorGraph(config, weights, step, int8=int8), threads)
        times = [number * step for number in range(SOLVER_STEPS + 1)]
        self._times = [time_inputs(config, floats, t, r) for t, r in pairwise(times)]
        self.prompt = lru_cache(CACHED_PROMPTS)(self._render_prompt)
        self._speaker = floats["spk_embed_affine_layer.weight"], floats["spk_embed_affine_layer.bias"]
        self._distances = [
            DistanceTables({name: floats[f"{name}.linear_pos.weight"] for name in names}, config)
            for names in attention_names(config)
        ]

    def start(self) -> FlowCaches:
        """Return the state of an utterance without a prompt."""
        return FlowCaches(encoder=self._encoder.start(), steps=(self._estimator.start(),) * SOLVER_STEPS)

    def speaker(self, vector: Floats) -> Floats:
        """Project a speaker vector (speaker_width,) to (mel,)."""
        weight, bias = self._speaker
        projected: Floats = weight @ (vector / max(float(np.linalg.norm(vector)), 1e-12)) + bias
        return projected

    def render(self, blocks: Sequence[FlowBlock]) -> tuple[list[Floats], list[FlowCaches]]:
        """Render blocks with equal numbers of tokens and of ids; return (frames, mel) of each, and states."""
        tokens, ids = blocks[0].tokens, np.array([block.ids for block in blocks])
        frames = FRAMES * tokens
        encoders = [block.state.encoder for block in blocks]
        missing = LOOKAHEAD_TOKENS - (ids.shape[1] - tokens)
        prompt_mel = np.zeros((len(blocks), frames, self.config.mel_bands), np.float32)
        for row, block in enumerate(blocks):
            prompt_mel[row, : len(block.prompt_mel)] = self._normalize(block.prompt_mel)
        inputs = {
            "embedded": take_rows(self._embedding, ids),
            "tail": np.zeros((len(blocks), missing, self.config.encoder_width), np.float32),
            "speaker": np.stack([block.speaker for block in blocks])[:, None],
            "prompt_mel": prompt_mel,
        }
        for rate, (tables, positions) in enumerate(zip(self._distances, (tokens, frames), strict=True)):
            mask = self._encoder.mask(f"{tables.first}.keys", encoders, positions)
            inputs |= {f"mask.{rate}": mask} | tables.inputs(positions, mask.shape[-1])
        (conditioning,), encoders = self._encoder.run(inputs, encoders, tokens=tokens)
        x = np.stack([block.noise for block in blocks])
        first_layer = f"{ESTIMATOR}.down_blocks.0.1.0.keys"
        mask = self._estimator.mask(first_layer, [block.state.steps[0] for block in blocks], frames)
        after: list[list[State]] = [[] for _ in blocks]
        for step, times in enumerate(self._times):
            inputs = {"x": x, "conditioning": conditioning, "mask": mask} | times
            before = [block.state.steps[step] for block in blocks]
            (x,), states = self._estimator.run(inputs, before, tokens=tokens)
            for reached, state in zip(after, states, strict=True):
                reached.append(state)
        mel = x * np.float32(self.config.mel_std) + np.float32(self.config.mel_mean)
        return list(mel), [
            FlowCaches(encoder=encoder, steps=tuple(steps))
            for encoder, steps in zip(encoders, after, strict=True)
        ]

    def noise(self, key: int, first: int, frames: int) -> Floats:
        """Return the noise (frames, mel) that a stream starts from, by frames counted from the prompt's first."""
        scale, bands = self.config.noise_scale, self.config.mel_bands
        if not scale:
            return np.zeros((frames, bands), np.float32)
        return np.float32(scale) * normal(key, first, frames, bands)

    def _render_prompt(self, voice: Voice) -> tuple[int, FlowCaches]:
        """Render a voice's prompt alone; return the tokens that were rendered, and the state after them.

        The last tokens wait for those they look ahead to. The noise is the voice's own, so that every request
        has the same past.
        """
        ids = voice.flow_prompt_ids.tolist()
        if (tokens := len(ids) - LOOKAHEAD_TOKENS) <= 0:
            return 0, self.start()
        block = FlowBlock(
            ids=ids,
            tokens=tokens,
            speaker=self.speaker(voice.flow_speaker),
            prompt_mel=voice.flow_prompt_mel[: FRAMES * tokens],
            noise=self.noise(stream_key(0, f"prompt/{voice.content_hash}"), 0, FRAMES * tokens),
            state=self.start(),
        )
        _, (state,) = self.render([block])
        return tokens, state

    def _normalize(self, mel: Floats) -> Floats:
        return (mel - np.float32(self.config.mel_mean)) / np.float32(self.config.mel_std)


class FlowStream:
    """The mel of one utterance, from speech tokens as they arrive.

    `next_block` and `finish` surround `FlowNetwork.render`, which may take blocks of several streams.
    """

    def __init__(self, flow: FlowNetwork, voice: Voice, *, seed: int) -> None:
        self._flow, self._voice, self._key = flow, voice, stream_key(seed, "flow")
        self._speaker = flow.speaker(voice.flow_speaker)
        # Tokens are counted from the prompt's first. `_ids` are those from `_start` on, where the next block
        # begins; mel is returned from `_done` on.
        self._start, self._state = flow.prompt(voice)
        self._done = len(voice.flow_prompt_ids)
        self._ids: list[int] = voice.flow_prompt_ids[self._start :].tolist()

    def next_block(self, tokens: list[int], *, final: bool) -> FlowBlock | None:
        """Take tokens and return the block that they complete, if any."""
        self._ids += tokens
        ready = len(self._ids) - (0 if final else LOOKAHEAD_TOKENS)
        if self._start + ready <= self._done:
            return None
        first, last = FRAMES * self._start, FRAMES * (self._start + ready)
        return FlowBlock(
            ids=list(self._ids),
            tokens=ready,
            speaker=self._speaker,
            prompt_mel=self._voice.flow_prompt_mel[first:last],
            noise=self._flow.noise(self._key, first, last - first),
            state=self._state,
        )

    def finish(self, block: FlowBlock, mel: Floats, state: FlowCaches) -> Floats:
        """Advance past a rendered block; return its frames (frames, mel) after the prompt."""
        fresh = mel[FRAMES * (self._done - self._start) :]
        self._state, self._start = state, self._start + block.tokens
        self._done = self._start
        del self._ids[: block.tokens]
        return fresh


class DistanceTables:
    """Distance encodings of some attention layers, projected to keys and scaled as scores are."""

    def __init__(self, weights: dict[str, Floats], config: FlowConfig) -> None:
        """weights: of the layers' `linear_pos`, by the layer's name."""
        self._names, self.first = list(weights), next(iter(weights))
        self._heads, self._width = config.encoder_heads, config.encoder_width
        self._weights = np.concatenate(list(weights.values())) * np.float32(
            (self._width // self._heads) ** -0.5
        )
        self._reach = 0
        self._tables: Floats = np.zeros(0, np.float32)
        """(layers, heads, head_width, distances from reach to -reach)."""

    def inputs(self, queries: int, keys: int) -> dict[str, Floats]:
        """Return the tables for distances keys-1 … -queries, (heads, head_width, distances)."""
        if keys > self._reach:
            self._extend(max(2 * self._reach, keys, MIN_REACH))
        columns = slice(self._reach - (keys - 1), self._reach + queries + 1)
        return {
            f"{name}.distances": np.ascontiguousarray(table[..., columns])
            for name, table in zip(self._names, self._tables, strict=True)
        }

    def _extend(self, reach: int) -> None:
        self._reach = reach
        distance = np.arange(reach, -reach - 1, -1, dtype=np.float32)
        exponent = np.arange(0, self._width, 2, dtype=np.float32) / np.float32(self._width)
        angle = np.exp(exponent * np.float32(-np.log(10000.0)))[:, None] * distance
        encoding = np.stack([np.sin(angle), np.cos(angle)], axis=1).reshape(self._width, -1)
        projected = self._weights @ encoding
        self._tables = projected.reshape(len(self._names), self._heads, -1, len(distance))


def time_inputs(config: FlowConfig, weights: Weights, t: float, r: float) -> dict[str, Floats]:
    """Return the time embedding of each stage's resnet block for the solver step from t to r."""

    def embed(time: float) -> Floats:
        width = 4 * config.mel_bands
        half = width // 2
        rate = np.exp(np.arange(half, dtype=np.float32) * np.float32(-np.log(10000.0) / (half - 1)))
        angle = np.float32(1000.0 * time) * rate
        hidden = linear("time_mlp.linear_1", np.concatenate([np.sin(angle), np.cos(angle)]))
        return linear("time_mlp.linear_2", hidden / (1 + np.exp(-hidden)))

    def linear(name: str, x: Floats) -> Floats:
        result: Floats = weights[f"{ESTIMATOR}.{name}.weight"] @ x + weights[f"{ESTIMATOR}.{name}.bias"]
        return result

    time = weights[f"{ESTIMATOR}.time_embed_mixer.weight"] @ np.concatenate([embed(t), embed(r)])
    mish = time * np.tanh(np.logaddexp(0, time))
    return {
        f"{stage}.0.time": weights[f"{stage}.0.mlp.1.weight"] @ mish + weights[f"{stage}.0.mlp.1.bias"]
        for stage in stages(config)
    }
