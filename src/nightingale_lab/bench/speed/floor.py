"""How far each stage is from what the machine could do at best.

T3 reads every weight once for each token and does little with it: its floor is weight bytes over bandwidth.
Flow and vocoder compute: their floor is operations over rate. Both are measured here, on this machine, in
this process and with its threads, with torch's own best case: reading a block as large as the weights, and
one large matrix product. A ratio of 1 cannot be beaten with these numbers; fewer bytes or operations can.
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

    @property
    def ratio(self) -> float:
        return self.took_ms / self.floor_ms if self.floor_ms else float("inf")

    def row(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "took_ms": round(self.took_ms, 4),
            "floor_ms": round(self.floor_ms, 4),
            "over_floor": round(self.ratio, 2),
            "floor_of": self.floor_of,
        }


def best_s(act: Callable[[], object], repeats: int = REPEATS) -> float:
    """The least of a few times: a floor is not made of unlucky moments."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        act()
        times.append(time.perf_counter() - begun)
    return min(times)


def distances(model: Any, text: str) -> list[Distance]:
    """model: nightingale.engine.load.Model, as it was loaded."""
    import torch

    with torch.inference_mode():
        return _distances(model, text)


def _distances(model: Any, text: str) -> list[Distance]:
    import torch

    from nightingale.backends.torch.mel_stream import audible, render_mel
    from nightingale.backends.torch.sample_stream import render_samples
    from nightingale.engine.voice_lookup import Voicing

    t3, flow, hift = model.networks.t3, model.networks.flow, model.networks.hift
    voice = Voicing(model).resolve(None)
    device = t3.speech_head.weight.device
    wait: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    ids, steps_s = _timed_tokens(model, text, voice, wait)
    mel = render_mel(flow, audible(ids), voice, seed=SEED)
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
        "flow": lambda: render_mel(flow, audible(ids), voice, seed=SEED),
        "vocoder": lambda: render_samples(hift, mel, seed=SEED),
    }
    for stage, act in acts.items():
        work = operations(act)
        found.append(
            Distance(
                stage=stage,
                took_ms=1000 * best_s(partial(_finished, act, wait), 3),
                floor_ms=1000 * work / rate,
                floor_of=f"{work / 1e9:.1f} GFLOP at {rate / 1e9:.0f} GFLOP/s, for {len(ids)} tokens",
            )
        )
    return found


def _finished(act: Callable[[], object], wait: Callable[[], object]) -> None:
    act()
    wait()


def _timed_tokens(
    model: Any, text: str, voice: Any, wait: Callable[[], object]
) -> tuple[list[int], list[float]]:
    """The tokens of a text and the time of each, the first (which reads the prompt) left out."""
    from nightingale.decoding.decoding import speak

    defaults = model.defaults
    drawn = speak(
        model.networks.t3,
        model.frontend.encode(text, None),
        voice,
        defaults=defaults,
        sampling=defaults.sampling,
        exaggeration=defaults.exaggeration,
        seed=SEED,
    )
    ids, times, at = [], [], time.perf_counter()
    for token in drawn:
        wait()
        now = time.perf_counter()
        ids.append(token)
        times.append(now - at)
        at = now
    return ids, times[1:] or times


def step_bytes(t3: Any) -> int:
    """Weights read for one token: all but the tables of which a step reads one row."""
    import torch

    tables = {id(module.weight) for module in t3.modules() if isinstance(module, torch.nn.Embedding)}
    return sum(weight.nbytes for weight in t3.parameters() if id(weight) not in tables)


def bandwidth(size: int, device: Any, wait: Callable[[], object]) -> float:
    """Bytes a second when a matrix of this size meets a vector, which is what a step is made of."""
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
    """Operations a second of one large product in float32."""
    import torch

    left, right = torch.ones(size, size, device=device), torch.ones(size, size, device=device)
    return float(2 * size**3 / best_s(lambda: (torch.mm(left, right), wait())))


def operations(act: Callable[[], object]) -> int:
    """Of all products and convolutions within."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        act()
    return int(counter.get_total_flops())
