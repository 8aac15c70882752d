"""Speech tokens to mel frames of whole segments, by the flow of an official model.

Every frame attends to every other one, so nothing is rendered before all tokens are known. The graphs are those
of flow_graph.py without caches. `models/chatterbox/s3gen/flow.py` is the reference.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from nightingale.backends.onnx.numpy_weights import Floats, LazyFloats, PackedWeights
from nightingale.backends.onnx.rendering.flow_graph import EstimatorGraph, TokenEncoderGraph, attention_names
from nightingale.backends.onnx.rendering.flow_stream import EMBEDDING, FRAMES, DistanceTables, time_inputs
from nightingale.backends.onnx.streaming_session import create_session
from nightingale.decoding.philox import normal, stream_key
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS, FlowConfig
from nightingale.models.chatterbox.s3gen.flow import (
    GUIDANCE,
    GUIDED_STEPS,
    MEANFLOW_STEPS,
    cosine_times,
    linear_times,
)
from nightingale.voices.voice import Voice


class SegmentFlow:
    """The flow's sessions, which share nothing between two utterances."""

    def __init__(
        self,
        config: FlowConfig,
        weights: PackedWeights,
        *,
        threads: int,
        int8: bool = False,
        steps: int | None = None,
    ) -> None:
        """Create the sessions.

        Args:
            config: The flow's sizes.
            weights: By their names in the checkpoint.
            threads: Of each session.
            int8: Compute products with int8 weights and inputs; in float32 otherwise.
            steps: Of the solver; None for as many as upstream takes.
        """
        self.config, floats = config, LazyFloats(weights.__getitem__)
        self._embedding = floats[EMBEDDING]
        self._encoder = create_session(TokenEncoderGraph(config, weights, int8=int8, whole=True), threads)
        self._estimator = create_session(
            EstimatorGraph(config, weights, None, int8=int8, whole=True), threads
        )
        times = (
            linear_times(steps or MEANFLOW_STEPS) if config.meanflow else cosine_times(steps or GUIDED_STEPS)
        )
        self._steps = [(r - t, time_inputs(config, floats, t, r)) for t, r in pairwise(times)]
        self._speaker = floats["spk_embed_affine_layer.weight"], floats["spk_embed_affine_layer.bias"]
        self._distances = [
            DistanceTables({name: floats[f"{name}.linear_pos.weight"] for name in names}, config)
            for names in attention_names(config)
        ]

    def render(self, ids: list[int], voice: Voice, *, seed: int) -> Floats:
        """Return the mel (frames, bands) of `ids` in this voice."""
        conditioning = self._encode([*voice.flow_prompt_ids.tolist(), *ids], voice)
        if not self.config.meanflow:  # the second row has no conditioning
            conditioning = np.concatenate([conditioning, np.zeros_like(conditioning)])
        rows, frames = conditioning.shape[:2]
        bands = self.config.mel_bands
        x = np.float32(self.config.noise_scale) * normal(stream_key(seed, "flow"), 0, frames, bands)[None]
        for step, times in self._steps:
            inputs = {"x": np.repeat(x, rows, axis=0), "conditioning": conditioning, **times}
            (velocity,) = self._estimator.run(None, inputs)
            if rows == 2:
                velocity = (1 + GUIDANCE) * velocity[:1] - GUIDANCE * velocity[1:]
            x = x + np.float32(step) * velocity
        mel: Floats = x[0, len(voice.flow_prompt_mel) :]
        return mel * np.float32(self.config.mel_std) + np.float32(self.config.mel_mean)

    def _encode(self, ids: list[int], voice: Voice) -> Floats:
        tokens, frames = len(ids), FRAMES * len(ids)
        weight, bias = self._speaker
        vector = voice.flow_speaker / max(float(np.linalg.norm(voice.flow_speaker)), 1e-12)
        prompt_mel = np.zeros((1, frames, self.config.mel_bands), np.float32)
        normalized = (voice.flow_prompt_mel - self.config.mel_mean) / self.config.mel_std
        prompt_mel[0, : len(normalized)] = normalized
        inputs = {
            "embedded": self._embedding[ids][None],
            "tail": np.zeros((1, LOOKAHEAD_TOKENS, self.config.encoder_width), np.float32),
            "speaker": (weight @ vector + bias)[None, None],
            "prompt_mel": prompt_mel,
        }
        for tables, positions in zip(self._distances, (tokens, frames), strict=True):
            inputs |= tables.inputs(positions, positions)
        (conditioning,) = self._encoder.run(None, inputs)
        result: Floats = conditioning
        return result
