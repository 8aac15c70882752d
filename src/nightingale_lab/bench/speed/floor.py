"""Compare the time of each stage with the least time that this machine needs for it.

T3 reads every weight once per token and does little else: its floor is weight bytes over memory bandwidth.
Flow and vocoder compute: their floor is operations over arithmetic rate. Bandwidth and rate are measured in
the same process with the same threads, by torch's own best case. A ratio of 1 can only be beaten with fewer
bytes or fewer operations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

SEED = 5
REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    stage: str
    took_ms: float
    floor_ms: float
    floor_of: str
    """The origin of the floor, for people."""

    def row(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "took_ms": round(self.took_ms, 4),
            "floor_ms": round(self.floor_ms, 4),
            "over_floor": round(self.took_ms / self.floor_ms, 2) if self.floor_ms else float("inf"),
            "floor_of": self.floor_of,
        }


def best_s(act: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the least of several times."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        act()
        times.append(time.perf_counter() - begun)
    return min(times)


def distances(model: Any, text: str, device: str = "auto") -> list[Distance]:
    """Measure the stages of a loaded model (nightingale.engine.load.Model) with a text, in float32.

    Returns nothing for the model "noise", which has no weights.
    """
    import torch

    from nightingale.backends import BACKENDS
    from nightingale.backends.selection import find_machine
    from nightingale_lab import reference

    if model.info.synthetic:
        return []
    device = find_machine(BACKENDS, device, model.info).device  # the engine's, also where it is "auto"
    t3 = reference.networks_of(model, device).t3
    wait: Callable[[], object] = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    ids, steps_s = _timed_tokens(reference.speech_tokens(model, text, seed=SEED, device=device), wait)
    mel = reference.mel_of(model, ids, seed=SEED, device=device)
    bytes_per_step = step_bytes(t3)
    read = bandwidth(bytes_per_step, device, wait)
    rate = matmul_rate(device, wait)
    found = [
        Distance(
            stage="t3 step",
            took_ms=1000 * sorted(steps_s)[len(steps_s) // 2],
            floor_ms=1000 * bytes_per_step / read,
            floor_of=f"{bytes_per_step / 1e6:.0f} MB at {read / 1e9:.1f} GB/s",
        )
    ]
    acts: dict[str, Callable[[], object]] = {
        "flow": partial(reference.mel_of, model, ids, seed=SEED, device=device),
        "vocoder": partial(reference.samples_of, model, mel, seed=SEED, device=device),
    }
    for stage, act in acts.items():
        work = operations(act)
        found.append(
            Distance(
                stage=stage,
                took_ms=1000 * best_s(lambda act=act: (act(), wait()), 3),  # type: ignore[misc]
                floor_ms=1000 * work / rate,
                floor_of=f"{work / 1e9:.1f} GFLOP at {rate / 1e9:.0f} GFLOP/s, for {len(ids)} tokens",
            )
        )
    return found


def _timed_tokens(drawn: Any, wait: Callable[[], object]) -> tuple[list[int], list[float]]:
    """Return the tokens and the time of each, without the first, which includes the prefill."""
    ids, times, at = [], [], time.perf_counter()
    for token in drawn:
        wait()
        now = time.perf_counter()
        ids.append(token)
        times.append(now - at)
        at = now
    return ids, times[1:] or times


def step_bytes(t3: Any) -> int:
    """Return the bytes of weights read for one token: all but embedding tables, which a step indexes."""
    import torch

    tables = {id(module.weight) for module in t3.modules() if isinstance(module, torch.nn.Embedding)}
    return sum(weight.nbytes for weight in t3.parameters() if id(weight) not in tables)


def bandwidth(size: int, device: Any, wait: Callable[[], object]) -> float:
    """Return the bytes per second of a matrix-vector product of this size, as a step does it."""
    import torch

    columns = 1024
    rows = max(1, size // (4 * columns))
    matrix, vector = torch.ones(rows, columns, device=device), torch.ones(columns, device=device)
    took = min(
        best_s(lambda: (torch.mv(matrix, vector), wait())),
        best_s(lambda: (matrix.sum(), wait())),
    )
    return matrix.nbytes / took


def matmul_rate(device: Any, wait: Callable[[], object], size: int = 1024) -> float:
    """Return the operations per second of one large product in float32."""
    import torch

    left, right = torch.ones(size, size, device=device), torch.ones(size, size, device=device)
    return float(2 * size**3 / best_s(lambda: (torch.mm(left, right), wait())))


def operations(act: Callable[[], object]) -> int:
    """Count the operations of all products and convolutions in a call."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        act()
    return int(counter.get_total_flops())
