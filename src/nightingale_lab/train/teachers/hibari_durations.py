"""hibari with durations that the caller can edit: one more input and one more output of its ONNX graph.

hibari predicts the duration of each phoneme in ticks of 25 ms, as Kokoro does, so that the same edits apply
(`articulation.py`). The package onnx is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale_lab.train.teachers.hibari import find_package

TICK_SAMPLES = 600
"""25 ms at 24 kHz."""
GIVEN, PREDICTED = "given_durations", "predicted_durations"
CLIPPED = "/Clip"
"""The node whose output are the durations of hibari 0.2.1, whole numbers of at least one tick."""


class EditableHibari:
    """The voice of the unpacked wheel in `folder`, like HibariTeacher, with durations."""

    def __init__(self, folder: Path, *, threads: int = 1) -> None:
        import onnx
        import onnxruntime

        model = find_package(folder)
        from hibari import dsp

        graph = with_given_durations(onnx.load(str(model)))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._vocode: Any = dsp.synth
        self._session = onnxruntime.InferenceSession(
            graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def durations(self, ids: Sequence[int], *, speed: float = 1.0) -> NDArray[np.int64]:
        """Return the ticks of each phoneme. `ids` begin and end with the pad, 0."""
        ticks: NDArray[np.int64] = self._run(ids, np.zeros(len(ids)), speed)[-1].astype(np.int64)
        return ticks

    def speak(
        self, ids: Sequence[int], durations: NDArray[np.int64], *, speed: float = 1.0, seed: int = 0
    ) -> Tensor:
        """Return float32 samples at 24 kHz. A phoneme of no ticks is as long as it is predicted."""
        *features, _ = self._run(ids, durations, speed)
        samples = self._vocode(*(feature[0] for feature in features), np.random.default_rng(seed))
        return torch.from_numpy(np.asarray(samples, dtype=np.float32))

    def _run(self, ids: Sequence[int], durations: NDArray[Any], speed: float) -> list[NDArray[Any]]:
        found: list[NDArray[Any]] = self._session.run(
            None,
            {
                "ids": np.asarray([ids], np.int64),
                "speed": np.asarray([speed], np.float32),
                GIVEN: durations.astype(np.float32),
            },
        )
        return found


def with_given_durations(model: Any) -> Any:
    """Return the ONNX model with an input of durations, 0 where the predicted one is used, and these as an output."""
    from onnx import TensorProto, helper

    graph = model.graph
    place, clip = next((i, node) for i, node in enumerate(graph.node) if node.name == CLIPPED)
    used, clip.output[0] = clip.output[0], PREDICTED
    zero = helper.make_node("Constant", [], ["no_ticks"], value_float=0.0)
    given = helper.make_node("Greater", [GIVEN, "no_ticks"], ["is_given"])
    chosen = helper.make_node("Where", ["is_given", GIVEN, PREDICTED], [used])
    for offset, node in enumerate((zero, given, chosen), 1):
        graph.node.insert(place + offset, node)
    graph.input.append(helper.make_tensor_value_info(GIVEN, TensorProto.FLOAT, ["phonemes"]))
    graph.output.append(helper.make_tensor_value_info(PREDICTED, TensorProto.FLOAT, ["phonemes"]))
    return model
