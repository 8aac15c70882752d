"""Watermarks by the package resemble-perth, as upstream marks its audio: optional, and off by default.

The marker changes a recording's spectrum below 2 kHz by an amount that depends on about 150 ms around each
moment. It knows whole recordings only, so a stream is marked chunk by chunk: each chunk is marked together with the
last 0.3 s before it, and of the result only the change to the chunk itself is used, faded in and out over 5 ms.
So nothing is held back, chunks keep their lengths, and there is no step between two of them.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

from nightingale.audio.samples import Samples
from nightingale.clocks import CLOCKS
from nightingale.errors import ConfigError
from nightingale.install import install_command

CONTEXT_S: Final = 0.3
"""Audio before a chunk that is marked with it."""
LEAST_S: Final = 0.1
"""The shortest audio that is marked; the marker's windows have 64 ms."""
FADE_S: Final = 0.005


@cache
def open_marker() -> Any:
    """Return the marker, which also detects marks; its network is loaded once.

    Raises:
        ConfigError: The package is not installed, or cannot load its network.
    """
    try:
        import perth
    except ImportError as error:
        raise ConfigError(
            "watermarks need the package resemble-perth", got=str(error), fix=install_command("watermark")
        ) from error
    if perth.PerthImplicitWatermarker is None:  # its own import failed, and it does not say so
        raise ConfigError(
            "the package resemble-perth cannot load its network",
            got="an import inside the package failed",
            allowed="setuptools below 81, which has pkg_resources",
            fix=install_command("watermark"),
        )
    with contextlib.redirect_stdout(io.StringIO()):  # it prints, and stdout may be a WAV file
        return perth.PerthImplicitWatermarker()


class WatermarkStream:
    """Marks the chunks of one request in order."""

    def __init__(self, sample_rate_hz: int, marker: Any = None) -> None:
        self._rate_hz, self._marker = sample_rate_hz, marker or open_marker()
        self._context: Samples = np.zeros(0, np.float32)

    def push(self, samples: Samples) -> Samples:
        """Return the chunk, marked."""
        joined = np.concatenate([self._context, samples])
        self._context = joined[-round(CONTEXT_S * self._rate_hz) :]
        if len(joined) < LEAST_S * self._rate_hz or not samples.any():
            return samples
        marked = np.asarray(self._marker.apply_watermark(joined, sample_rate=self._rate_hz), np.float32)
        change = np.zeros(len(joined), np.float32)
        length = min(len(marked), len(joined))
        change[:length] = marked[:length] - joined[:length]
        change = change[len(joined) - len(samples) :]
        return samples + change * _fades(len(samples), round(FADE_S * self._rate_hz))


def _fades(length: int, fade: int) -> Samples:
    """Return ones that rise from and fall to zero over `fade` samples at the ends."""
    at = np.arange(length)
    nearest = np.minimum(at, length - 1 - at)
    return np.minimum(1.0, nearest / max(1, fade)).astype(np.float32)


def detect_watermark(samples: Samples, sample_rate_hz: int) -> float:
    """Return how sure the detector is that a recording is marked: 0 to 1."""
    found = open_marker().get_watermark(samples, sample_rate=sample_rate_hz, round=False)
    return float(np.mean(found))


def marks_of(watermark: bool) -> Callable[[], Callable[[Samples], Samples] | None]:
    """Return a function that returns what marks the chunks of a new request, or None if audio is not marked.

    Raises:
        ConfigError: Audio is to be marked, and the package is not installed.
    """
    if not watermark:
        return lambda: None
    marker = open_marker()
    return lambda: WatermarkStream(CLOCKS.sample_rate_hz, marker).push
