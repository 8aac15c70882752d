"""Mel frames to samples, block by block, over the graph that PyTorch exported of the frame-rate vocoder.

`nightingale train graphs` writes the graph without weights, which come from the model's files. Its inputs are `mel`,
`noise` and the parts of the state, its outputs `samples` and "new." + part. `models/frame_vocoder/network.py` is its
source.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime

from nightingale.backends.onnx.network_graph import NEW
from nightingale.backends.onnx.numpy_weights import Floats
from nightingale.backends.onnx.streaming_session import State, session_options
from nightingale.backends.shared.vocoder_blocks import VocoderBlocks
from nightingale.errors import memory_full
from nightingale.models.frame_vocoder.config import (
    SILENT_LOG_MEL,
    SILENT_STATES,
    FrameVocoderConfig,
    state_shapes,
)
from nightingale.models.frame_vocoder.transforms import matrices
from nightingale.types import Samples

PASS_FRAMES: Final = 40
"""Longer blocks are rendered in several passes, which keeps activations small."""


class VocoderNetwork:
    """The vocoder's session. It holds weights; states belong to streams."""

    def __init__(
        self, config: FrameVocoderConfig, weights: Mapping[str, Floats], graph: Path, *, threads: int
    ) -> None:
        """Open the graph of a vocoder of these sizes.

        weights: in float32, by their names in the network. threads: of the session.

        Raises:
            ValueError: The weights do not fit the graph.
        """
        self.config, self._shapes = config, state_shapes(config)
        options = session_options(threads)
        constants = {**weights, **matrices(config.mel_bands)}
        arrays = [np.ascontiguousarray(value) for value in constants.values()]
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
        options.add_external_initializers(list(constants), values)
        try:
            self._session = onnxruntime.InferenceSession(
                str(graph), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the package's errors have no common class of their own
            if (full := memory_full(error)) is not None:
                raise full from error
            raise ValueError(str(error)) from error
        self._outputs = ["samples", *(NEW + name for name, _ in self._shapes)]

    def start(self) -> State:
        """Return the state of a stream that begins."""
        return tuple(
            onnxruntime.OrtValue.ortvalue_from_numpy(
                np.full((1, *shape), SILENT_LOG_MEL if name in SILENT_STATES else 0.0, np.float32)
            )
            for name, shape in self._shapes
        )

    def render(self, mel: Floats, noise: Floats, state: State) -> tuple[Samples, State]:
        """Return the samples of mel (frames, bands) and of 480 numbers of noise a frame, and the state after them."""
        inputs = {"mel": np.ascontiguousarray(mel.T[None]), "noise": noise[None]}
        feeds = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in inputs.items()}
        feeds |= {name: value for (name, _), value in zip(self._shapes, state, strict=True)}
        samples, *after = self._session.run_with_ort_values(self._outputs, feeds)
        return samples.numpy()[0], tuple(after)


class VocoderStream:
    """The samples of one utterance."""

    def __init__(self, network: VocoderNetwork, *, seed: int) -> None:
        self._network, self._blocks, self._state = network, VocoderBlocks(seed=seed), network.start()

    def push(self, mel: Floats, *, final: bool) -> Samples:
        """Return the samples that mel (frames, bands) completes, perhaps none."""
        frames = self._blocks.frames(len(mel), final=final)
        if not frames:
            return np.zeros(0, np.float32)
        padded = np.pad(mel, ((0, frames - len(mel)), (0, 0)), constant_values=SILENT_LOG_MEL)
        rendered = []
        for part in np.array_split(padded, -(-frames // PASS_FRAMES)):
            samples, self._state = self._network.render(part, self._blocks.noise(len(part)), self._state)
            rendered.append(samples)
        return self._blocks.emit(np.concatenate(rendered))
