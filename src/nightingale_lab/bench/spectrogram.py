"""Draw spectrograms of the same sentences, the teacher's above ours, to look for buzz and clicks.

    .venv-judges/bin/python src/nightingale_lab/bench/spectrogram.py OUT.png TEACHER_FOLDER OUR_FOLDER [COUNT]

Matplotlib lives in the judges' environment; nothing of the package is needed here. Files are paired by name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FFT_SIZE = 1024
HOP = 256
FLOOR_DB = -80.0


def spectrogram_db(samples: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the power in decibels below the clip's peak: (bins, frames)."""
    padded = np.pad(samples, (0, max(0, FFT_SIZE - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, FFT_SIZE)[::HOP] * np.hanning(FFT_SIZE)
    power = np.abs(np.fft.rfft(frames, axis=1)).T ** 2
    decibels = 10.0 * np.log10(power + 1e-12)
    return np.asarray(np.maximum(decibels - decibels.max(), FLOOR_DB))


def read(path: Path) -> tuple[NDArray[np.float32], int]:
    import soundfile

    samples, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    return np.asarray(samples.mean(axis=1), dtype=np.float32), int(rate_hz)


def draw(
    pairs: Sequence[tuple[Path, Path]], out: Path, *, labels: tuple[str, str] = ("teacher", "ours")
) -> None:
    """Draw two rows per sentence on one time axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2 * len(pairs), 1, figsize=(12, 2.6 * len(pairs)), squeeze=False)
    for index, pair in enumerate(pairs):
        sounds = [read(path) for path in pair]
        longest = max(len(samples) / rate_hz for samples, rate_hz in sounds)
        for offset, (samples, rate_hz) in enumerate(sounds):
            axis: Any = axes[2 * index + offset, 0]
            reach = (0.0, len(samples) / rate_hz, 0.0, rate_hz / 2000)
            axis.imshow(spectrogram_db(samples), origin="lower", aspect="auto", extent=reach, cmap="magma")
            axis.set_xlim(0.0, longest)
            axis.set_ylabel(f"{labels[offset]}\n{pair[offset].stem}\nkHz", fontsize=7)
            axis.tick_params(labelsize=6)
    figure.tight_layout(pad=0.4)
    figure.savefig(out, dpi=90)
    plt.close(figure)


def main() -> None:
    out, teacher, ours = (Path(argument) for argument in sys.argv[1:4])
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 10
    names = sorted({path.name for path in teacher.glob("*.wav")} & {path.name for path in ours.glob("*.wav")})
    draw([(teacher / name, ours / name) for name in names[:count]], out)


if __name__ == "__main__":
    main()
