"""DNSMOS P.835 and P.808: noise and distortion of speech on a scale of 1 to 5, not its naturalness.

The two networks rate windows of 9.01 s, one second apart; shorter clips are repeated until they fill one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nightingale_lab.bench.judges.mel import Array, mel_power

RATE_HZ = 16_000
WINDOW_SECONDS = 9.01
# Calibration polynomials published with the networks, highest power first.
CALIBRATION = {
    "sig": (-0.08397278, 1.22083953, 0.0052439),
    "bak": (-0.13166888, 1.60915514, -0.39604546),
    "ovrl": (-0.06766283, 1.11546468, 0.04602535),
}


def windows_of(samples: Array) -> list[Array]:
    """Return the windows that are rated: each 9.01 s long, one second apart."""
    size = int(WINDOW_SECONDS * RATE_HZ)
    while len(samples) < size:
        samples = np.concatenate([samples, samples])
    count = int(np.floor(len(samples) / RATE_HZ) - WINDOW_SECONDS) + 1
    starts = [index * RATE_HZ for index in range(count)]
    return [samples[start : start + size] for start in starts if start + size <= len(samples)]


def evenly(windows: list[Array], most: int) -> list[Array]:
    """Return at most that many windows, evenly spread, first and last included; 0 keeps all."""
    if not most or len(windows) <= most:
        return windows
    return [windows[round(at)] for at in np.linspace(0, len(windows) - 1, most)]


def p808_features(window: Array) -> Array:
    """Return the log-mel power below its peak, clipped at 80 dB and scaled to about ±1: (900, 120)."""
    power = mel_power(window[:-160], rate_hz=RATE_HZ, fft_size=321, hop=160, bands=120)
    decibels = 10.0 * np.log10(np.maximum(power, 1e-10))
    relative = np.maximum(decibels - decibels.max(), -80.0)
    return np.asarray((relative + 40.0) / 40.0, dtype=np.float32)


class Dnsmos:
    """Both networks. A window takes most of a second on a small core, hence `most_windows`."""

    def __init__(self, folder: Path, *, threads: int, most_windows: int = 0) -> None:
        import onnxruntime as ort

        self.most_windows = most_windows
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        self.primary = self._session(ort, folder / "sig_bak_ovr.onnx", options)
        self.p808 = self._session(ort, folder / "p808.onnx", options)

    @staticmethod
    def _session(ort: Any, path: Path, options: Any) -> Any:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def score(self, samples: Array) -> dict[str, float]:
        """`ovrl`, `sig`, `bak` and `p808` of a clip at 16 kHz, averaged over its windows (or an even few)."""
        rows: list[dict[str, float]] = []
        for window in evenly(windows_of(np.clip(samples, -1.0, 1.0)), self.most_windows):
            raw = self.primary.run(None, {"input_1": window[None].astype(np.float32)})[0][0]
            row = {
                name: float(np.polyval(CALIBRATION[name], value))
                for name, value in zip(("sig", "bak", "ovrl"), raw, strict=True)
            }
            row["p808"] = float(self.p808.run(None, {"input_1": p808_features(window)[None]})[0][0][0])
            rows.append(row)
        return {name: float(np.mean([row[name] for row in rows])) for name in ("ovrl", "sig", "bak", "p808")}
