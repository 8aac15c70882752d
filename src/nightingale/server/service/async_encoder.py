"""An audio encoder for the event loop: what takes long is done in a thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Final

from nightingale.audio.encoders.streaming import check_format, open_encoder
from nightingale.clocks import CLOCKS
from nightingale.types import Samples

INLINE_SAMPLES: Final = round(0.5 * CLOCKS.sample_rate_hz)
"""Less audio than this is encoded in the event loop (a few milliseconds), more in a thread."""
FIRST_SAMPLES: Final = round(0.1 * CLOCKS.sample_rate_hz)
"""The first bytes are encoded from this much audio at a time: each frame that FFmpeg encodes passes Python's
lock to the engine and waits to get it back, and a whole chunk of frames would delay the first audio."""


class AsyncEncoder:
    """Encodes the audio of one response, from its first sample to its last."""

    def __init__(
        self, response_format: str, sample_rate_hz: int, bit_rate: int | None, threads: Executor
    ) -> None:
        self._cheap = check_format(response_format, sample_rate_hz).cheap
        self._encoder = open_encoder(response_format, sample_rate_hz=sample_rate_hz, bit_rate=bit_rate)
        self._threads = threads

    def encode_first(self, samples: Samples) -> tuple[bytes, Samples]:
        """Encode only until the first bytes come out; return them and the samples that are left."""
        step = FIRST_SAMPLES if not self._cheap else max(1, len(samples))
        for end in range(step, len(samples) + step, step):
            if data := self._encoder.feed(samples[end - step : end]):
                return data, samples[end:]
        return b"", samples[:0]

    async def encode(self, samples: Samples) -> bytes:
        if not len(samples):
            return b""
        if self._cheap or len(samples) < INLINE_SAMPLES:
            return self._encoder.feed(samples)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._encoder.feed, samples)

    def finish(self) -> bytes:
        return self._encoder.finish()
