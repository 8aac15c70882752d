"""hibari's graph with an input of durations."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from nightingale_lab.train.teachers.hibari_durations import GIVEN, PREDICTED, with_given_durations


def test_durations_that_are_given_replace_the_predicted_ones() -> None:
    nodes = [
        helper.make_node("Add", ["x", "one"], ["rounded"], name="/Round"),
        helper.make_node("Clip", ["rounded", "one"], ["clipped"], name="/Clip"),
        helper.make_node("Mul", ["clipped", "ten"], ["samples"], name="/Mul"),
    ]
    constants = [
        helper.make_tensor(name, TensorProto.FLOAT, [], [value])
        for name, value in (("one", 1.0), ("ten", 10.0))
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "samples")]
    graph = helper.make_graph(nodes, "durations", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(with_given_durations(model).SerializeToString())
    x, given = np.array([1, 2, -5], np.float32), np.array([0, 7, 0], np.float32)
    samples, predicted = session.run(["samples", PREDICTED], {"x": x, GIVEN: given})
    assert predicted.tolist() == [2, 3, 1]
    assert samples.tolist() == [20, 70, 10]
