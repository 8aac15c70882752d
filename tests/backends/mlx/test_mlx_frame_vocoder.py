"""The frame vocoder on MLX against PyTorch: whole, in blocks, in rows, in float16, and with wren's weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

mx = pytest.importorskip("mlx.core")

from backends.conformance import source_of  # noqa: E402
from backends.mlx.steady_pitch import steady_wren  # noqa: E402
from backends.small_t3 import relative_error  # noqa: E402

from nightingale import wren  # noqa: E402
from nightingale.backends.base import ModelInfo, ModelSource  # noqa: E402
from nightingale.backends.mlx.rendering.block_state import BlockState  # noqa: E402
from nightingale.backends.mlx.rendering.frame_vocoder import MlxFrameVocoder  # noqa: E402
from nightingale.backends.mlx.weight_files import NetworkWeights, _state, vocoder_weights  # noqa: E402
from nightingale.models import checkpoint, compact  # noqa: E402
from nightingale.models.chatterbox.presets import PRESETS  # noqa: E402
from nightingale.models.defaults import MODEL_DEFAULTS  # noqa: E402
from nightingale.models.frame_vocoder.config import FRAME_SAMPLES, FrameVocoderConfig  # noqa: E402
from nightingale.models.frame_vocoder.network import FrameVocoder  # noqa: E402
from nightingale.models.layers.streaming_state import StreamingState  # noqa: E402

FRAMES, ROWS = 23, 2
TOLERANCE = 1e-5
"""Largest difference of samples at the same pitch; full scale is 1. Measured: at most 4e-6."""
PHASE_TOLERANCE = 2e-3
"""The same at a predicted pitch, which another order of sums changes. Measured: 1.5e-4."""
PITCH_TOLERANCE_HZ = 2e-3
"""Measured: 3.5e-4."""


def torch_vocoder(*, steady: bool) -> FrameVocoder:
    """Return a small random network."""
    net: FrameVocoder = (steady_wren() if steady else source_of("wren")).loaded("s3gen")[1]
    return net


def mlx_vocoder(net: FrameVocoder, dtype: mx.Dtype = mx.float32) -> MlxFrameVocoder:
    return MlxFrameVocoder(net.config, NetworkWeights(_state(net), None), dtype=dtype)


def inputs(rows: int = ROWS, frames: int = FRAMES) -> tuple[np.ndarray, np.ndarray]:
    """Return a mel (rows, frames, bands), louder in low bands, and noise."""
    rng = np.random.default_rng(1)
    mel = np.linspace(-1, -7, 80) + 0.5 * rng.normal(size=(rows, frames, 80))
    return mel.astype(np.float32), rng.normal(size=(rows, frames * FRAME_SAMPLES)).astype(np.float32)


def torch_samples(net: FrameVocoder, mel: np.ndarray, noise: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        mels = torch.from_numpy(mel).transpose(1, 2)
        samples, _ = net(mels, torch.from_numpy(noise), net.initial_state(len(mel)))
    result: np.ndarray = samples.numpy()
    return result


def mlx_samples(net: MlxFrameVocoder, mel: np.ndarray, noise: np.ndarray, size: int = FRAMES) -> np.ndarray:
    """Return the samples of blocks of `size` frames."""
    past, samples = None, []
    for start in range(0, mel.shape[1], size):
        end = start + size
        part = noise[:, start * FRAME_SAMPLES : end * FRAME_SAMPLES]
        block, past = net(mx.array(mel[:, start:end]), mx.array(part), past)
        samples.append(np.array(block))
    return np.concatenate(samples, axis=1)


@pytest.mark.parametrize("size", [FRAMES, 1, 2, 5])
@pytest.mark.parametrize(("steady", "tolerance"), [(True, TOLERANCE), (False, PHASE_TOLERANCE)])
def test_the_samples_are_those_of_pytorch(size: int, steady: bool, tolerance: float) -> None:
    net = torch_vocoder(steady=steady)
    mel, noise = inputs()
    expected = torch_samples(net, mel, noise)
    found = mlx_samples(mlx_vocoder(net), mel, noise, size)
    assert expected.shape == found.shape == (ROWS, FRAMES * FRAME_SAMPLES)
    assert 0.01 < expected.std() < 0.5
    assert np.abs(found - expected).max() < tolerance


@pytest.mark.parametrize("size", [1, 2, 5])
def test_joined_blocks_equal_the_whole(size: int) -> None:
    net, (mel, noise) = mlx_vocoder(torch_vocoder(steady=True)), inputs()
    assert np.abs(mlx_samples(net, mel, noise, size) - mlx_samples(net, mel, noise)).max() < TOLERANCE


def test_the_phase_stays_exact_when_its_sum_exceeds_32_bits() -> None:
    """A pitch of nearly 50 Hz adds nearly 2²⁰ units with each frame: their sum is 2³² after 82 seconds."""
    net, frames = mlx_vocoder(torch_vocoder(steady=True)), 4200
    hz, state = np.full((1, frames), 49.99, np.float32), mx.array([[0.25, 49.99]])
    block = BlockState((state,))
    mx.eval(net._tone(mx.array(hz), block))
    units = round(float(np.float32(49.99) * np.float32(0.02) % 1) * 2**20)
    assert units * frames > 2**32
    assert float(block.saved()[0][0, 0]) == ((2**18 + units * frames) % 2**20) / 2**20


def test_rows_are_streams_of_their_own() -> None:
    net, (mel, noise) = mlx_vocoder(torch_vocoder(steady=True)), inputs()
    both, alone = mlx_samples(net, mel, noise), mlx_samples(net, mel[1:], noise[1:])
    assert np.abs(both[1:] - alone).max() < TOLERANCE


def test_the_blocks_compute_in_float16_and_the_rest_in_float32() -> None:
    reference, (mel, noise) = torch_vocoder(steady=False), inputs()
    net = mlx_vocoder(reference, mx.float16)
    assert {block.up.weight.dtype for block in net.blocks} == {mx.float16}
    assert net.head.weight.dtype == net.pitch_head.weight.dtype == mx.float32
    whole = mlx_samples(net, mel, noise)
    assert np.abs(mlx_samples(net, mel, noise, 5) - whole).max() < 1e-3
    assert whole.dtype == np.float32
    assert 1e-6 < relative_error(whole, mlx_samples(mlx_vocoder(reference), mel, noise)) < 0.01


def test_wrens_packed_weights_give_the_samples_of_pytorch() -> None:
    """The pitch is compared by itself, and then the samples at PyTorch's pitch."""
    path = wren.folder() / wren.FILES["s3gen"]
    reference = FrameVocoder(FrameVocoderConfig()).eval().requires_grad_(False)
    stored = checkpoint.part(checkpoint.read_tensors(path), "mel2wav.")
    reference.load_state_dict(compact.unpack(stored))
    info = ModelInfo(name="wren", preset=PRESETS["wren"], defaults=MODEL_DEFAULTS["wren"])
    source = ModelSource(info, {"s3gen": path}, packed=True)
    net = MlxFrameVocoder(FrameVocoderConfig(), vocoder_weights(source))
    mel, noise = inputs(rows=1)
    theirs, mine = StreamingState(reference.initial_state(1)), BlockState(None)
    mels = torch.from_numpy(mel).transpose(1, 2)
    with torch.inference_mode():
        f0_hz = reference.pitch_predictor(mels, theirs)
        expected = reference.synthesize(mels, f0_hz, torch.from_numpy(noise), theirs).numpy()
    assert f0_hz.max() > 100
    pitch = np.array(net._pitch(mx.array(mel), mine))
    assert np.abs(pitch - f0_hz.numpy()).max() < PITCH_TOLERANCE_HZ
    found = np.array(net._synthesize(mx.array(mel), mx.array(f0_hz.numpy()), mx.array(noise), mine))
    assert expected.std() > 0.01
    assert np.abs(found - expected).max() < TOLERANCE
    for before, after in zip(theirs.saved(), mine.saved(), strict=True):
        assert before.numel() == after.size
