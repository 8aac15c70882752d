"""The vocoder's graph of ONNX computes what the network computes, in blocks, with weights that the caller supplies."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from nightingale.backends.onnx.network_graph import NEW
from nightingale.models.frame_vocoder.config import DELAY_SAMPLES, FRAME_SAMPLES, FrameVocoderConfig
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale_lab.train.graphs import VOCODER_GRAPH, write_graphs
from nightingale_lab.train.seeding import seeded

pytest.importorskip("onnxscript")
SMALL = FrameVocoderConfig(width=16, hidden=24, blocks=2, pitch_width=8)
LIMIT_BYTES = 200_000
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("graphs") / "new"
    write_graphs(folder, SMALL)
    return (folder / VOCODER_GRAPH).read_bytes()


def random_vocoder() -> FrameVocoder:
    with seeded(0):
        net = FrameVocoder(SMALL).eval().requires_grad_(False)
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    net.pitch_predictor.classifier.weight.mul_(200)
    net.pitch_predictor.classifier.bias.fill_(150.0)
    return net


def session(graph: bytes, weights: dict[str, np.ndarray]) -> onnxruntime.InferenceSession:
    used = [tensor.name for tensor in onnx.load_from_string(graph).graph.initializer if tensor.external_data]
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(weights[name]) for name in used]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_external_initializers(used, values)
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def test_the_graph_is_small_and_has_no_weights(graph: bytes) -> None:
    assert len(graph) < LIMIT_BYTES
    tensors = onnx.load_from_string(graph).graph.initializer
    external = {tensor.name for tensor in tensors if tensor.external_data}
    assert external == {*random_vocoder().state_dict(), "analysis", "synthesis", "to_bins"}


def test_blocks_of_the_graph_equal_the_network(graph: bytes) -> None:
    net = random_vocoder()
    tensors = {**net.state_dict(), **dict(net.named_buffers())}
    weights = {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}
    run = session(graph, weights)
    names = [name for name, _ in net.state_shapes()]
    generator = torch.Generator().manual_seed(1)
    mel = torch.randn(2, SMALL.mel_bands, 12, generator=generator) - 1.0
    noise = torch.randn(2, 12 * FRAME_SAMPLES, generator=generator)
    wanted, wanted_state = net(mel, noise, net.initial_state(2))
    state = dict(zip(names, (tensor.numpy() for tensor in net.initial_state(2)), strict=True))
    found, first = [], 0
    for frames in (5, 1, 4, 2):
        block = slice(first, first + frames)
        samples = slice(first * FRAME_SAMPLES, (first + frames) * FRAME_SAMPLES)
        feeds = {"mel": mel[:, :, block].numpy(), "noise": noise[:, samples].numpy()}
        outputs = run.run(["samples", *(NEW + name for name in names)], feeds | state)
        found.append(outputs[0])
        state = dict(zip(names, outputs[1:], strict=True))
        first += frames
    assert wanted[:, DELAY_SAMPLES:].std() > 0.01
    np.testing.assert_allclose(np.concatenate(found, axis=1), wanted.numpy(), atol=TOLERANCE, rtol=0)
    for name, tensor in zip(names, wanted_state, strict=True):
        assert state[name].shape == tuple(tensor.shape)
