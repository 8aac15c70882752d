"""Speaker similarity: GE2E embeddings with Resemblyzer's weights, computed in numpy without torch.

A three-layer LSTM reads 1.6 s windows of a 40-band mel spectrogram; its last state, projected, rectified and
normalized, is the embedding. A clip's embedding is the mean over its windows. The only difference to
Resemblyzer: long pauses are removed by their energy, not by WebRTC's voice activity detector.
"""

from __future__ import annotations

import collections
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nightingale_lab.bench.judges.mel import Array, mel_power

RATE_HZ = 16_000
HOP = 160
BANDS = 40
LAYERS = 3
WINDOW_FRAMES = 160
WINDOWS_PER_SECOND = 1.3
MIN_COVERAGE = 0.75
"""A last window filled less than this is dropped, unless it is the only one."""
LEVEL_DB = -30.0
SILENCE_DB = -40.0
"""Relative to the loudest block of the clip."""
KEPT_SILENCE_SECONDS = 0.18


class TensorReader(pickle.Unpickler):
    """Unpickles float tensors only. Other classes are refused, since a pickle can run code."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.pending: dict[str, list[tuple[Array, int]]] = collections.defaultdict(list)

    def find_class(self, module: str, name: str) -> Any:
        allowed: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch", "FloatStorage"): "float32",
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint of tensors")
        return allowed[module, name]

    def persistent_load(self, pid: Any) -> str:
        return str(pid[2])

    def _tensor(self, key: str, offset: int, shape: tuple[int, ...], *_: object) -> Array:
        array = np.empty(shape, dtype=np.float32)
        self.pending[key].append((array, offset))
        return array


def read_checkpoint(path: Path) -> dict[str, Array]:
    """Read `model_state` from torch's format before 1.6: four pickles, then the raw storages."""
    with path.open("rb") as file:
        for _ in range(3):  # magic number, protocol, machine
            TensorReader(file).load()
        reader = TensorReader(file)
        state = reader.load()["model_state"]
        for key in TensorReader(file).load():
            count = int.from_bytes(file.read(8), "little")
            storage = np.frombuffer(file.read(4 * count), dtype="<f4")
            for array, offset in reader.pending[key]:
                array[...] = storage[offset : offset + array.size].reshape(array.shape)
    return {str(name): value for name, value in state.items()}


def without_pauses(samples: Array) -> Array:
    """Return the clip with its level raised to -30 dB and its pauses shortened."""
    rms_db = 10.0 * np.log10(np.mean(samples.astype(np.float64) ** 2) + 1e-12)
    samples = samples * np.float32(10.0 ** (max(0.0, LEVEL_DB - rms_db) / 20.0))
    size = 30 * RATE_HZ // 1000
    blocks = samples[: len(samples) // size * size].reshape(-1, size)
    if not len(blocks):
        return samples
    level_db = 10.0 * np.log10(np.mean(blocks.astype(np.float64) ** 2, axis=1) + 1e-12)
    loud = level_db > level_db.max() + SILENCE_DB
    reach = round(KEPT_SILENCE_SECONDS * RATE_HZ / size / 2)
    near = np.convolve(loud, np.ones(2 * reach + 1))[reach : reach + len(blocks)] > 0.5
    return np.ascontiguousarray(blocks[near]).reshape(-1)


def window_starts(samples: int) -> list[int]:
    """Return the first frames of the windows that cover this many samples."""
    frames = -(-(samples + 1) // HOP)
    step = round(RATE_HZ / WINDOWS_PER_SECOND / HOP)
    starts = list(range(0, max(1, frames - WINDOW_FRAMES + step + 1), step))
    covered = (samples - starts[-1] * HOP) / (WINDOW_FRAMES * HOP)
    return starts[:-1] if covered < MIN_COVERAGE and len(starts) > 1 else starts


def sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * np.tanh(0.5 * x) + 0.5, dtype=np.float32)


class SpeakerEncoder:
    """The network and its weights."""

    def __init__(self, checkpoint: Path) -> None:
        self.weights = read_checkpoint(checkpoint)

    def _layer(self, inputs: Array, layer: int) -> Array:
        """Run one LSTM layer over (time, batch, features). Gate order: input, forget, cell, output."""
        w = self.weights
        bias = w[f"lstm.bias_ih_l{layer}"] + w[f"lstm.bias_hh_l{layer}"]
        driven = inputs @ w[f"lstm.weight_ih_l{layer}"].T + bias
        recurrent = w[f"lstm.weight_hh_l{layer}"].T
        width = recurrent.shape[0]
        hidden = np.zeros((inputs.shape[1], width), dtype=np.float32)
        cell = np.zeros_like(hidden)
        outputs = np.empty((*inputs.shape[:2], width), dtype=np.float32)
        for step, drive in enumerate(driven):
            gates = drive + hidden @ recurrent
            input_gate, forget, candidate, output = np.split(gates, 4, axis=1)
            cell = sigmoid(forget) * cell + sigmoid(input_gate) * np.tanh(candidate)
            hidden = sigmoid(output) * np.tanh(cell)
            outputs[step] = hidden
        return outputs

    def embed(self, samples: Array) -> Array:
        """Return the unit embedding (256,) of a clip at 16 kHz."""
        speech = without_pauses(samples)
        starts = window_starts(len(speech))
        speech = np.pad(speech, (0, max(0, (starts[-1] + WINDOW_FRAMES) * HOP - len(speech))))
        mel = mel_power(speech, rate_hz=RATE_HZ, fft_size=400, hop=HOP, bands=BANDS)
        state = np.stack([mel[start : start + WINDOW_FRAMES] for start in starts], axis=1)
        for layer in range(LAYERS):
            state = self._layer(state, layer)
        raw = np.maximum(0.0, state[-1] @ self.weights["linear.weight"].T + self.weights["linear.bias"])
        mean = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).mean(axis=0)
        return np.asarray(mean / np.linalg.norm(mean), dtype=np.float32)
