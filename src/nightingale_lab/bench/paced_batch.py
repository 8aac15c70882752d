"""A worker of a batch whose engine takes a fixed time per step, to measure what a cluster adds to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from nightingale.backends.noise.runner import NoiseRunner
from nightingale.engine.load import load_noise
from nightingale.engine.tts import TTS
from nightingale.ray.batch_worker import BatchWorker

STEP_S = 0.02
"""Time of a step, however many rows it has, as on a GPU."""


class PacedRunner(NoiseRunner):
    """Waits in each step, without taking processor time."""

    def step(self, inputs: Sequence[Any]) -> list[Any]:
        due_s = time.perf_counter() + STEP_S
        logits = super().step(inputs)
        time.sleep(max(0.0, due_s - time.perf_counter()))
        return logits


def paced_tts() -> TTS:
    """Return an engine for test signals that steps at a fixed rate."""
    model = load_noise()
    tts = TTS.over(model)
    decoder: Any = tts._worker.decoder
    decoder.runner = PacedRunner(model.info)
    return tts


class PacedBatchWorker(BatchWorker):
    """Speaks with the paced engine."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._tts.close()
        self._tts = paced_tts()
