"""Parts that all training stages use: schedule, averaged weights, checkpoints, log, CUDA graphs of steps.

A stage is a class with step functions that touch only tensors it owns (no `.item()`, no shape that changes).
`GraphedStep` runs them as CUDA graphs, because launching kernels one by one cannot keep a fast GPU busy. On a
CPU, or with `eager`, it calls them directly.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nightingale.errors import CheckpointError, ConfigError
from nightingale.models.compact import unpack

GRAPH_WARMUP_CALLS = 3
SYNC_EVERY_CALLS = 4
"""The host may be this many steps ahead of the GPU; with more, its clock would not measure finished work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Linear warm-up in steps, then a cosine decay over the whole plan down to `floor` of the peak."""

    peak: float
    warmup_steps: int
    floor: float = 0.05

    def at(self, fresh_steps: int, progress: float) -> float:
        """Return the learning rate after `fresh_steps` of this optimizer, at `progress` (0 to 1) of the plan."""
        warm = min(1.0, (fresh_steps + 1) / self.warmup_steps)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, max(0.0, progress))))
        return self.peak * warm * (self.floor + (1.0 - self.floor) * cosine)


class TimeBudget:
    """The time of a stage: the budget of this call, and the progress of the plan over all its calls."""

    def __init__(self, budget_s: float, *, plan_s: float | None = None, elapsed_s: float = 0.0) -> None:
        """plan_s: seconds of all calls together (default: this one). elapsed_s: seconds of earlier calls."""
        self.started_s, self.before_s = time.monotonic(), elapsed_s
        self.budget_s, self.plan_s = budget_s, plan_s or elapsed_s + budget_s

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self.started_s

    @property
    def elapsed_s(self) -> float:
        return self.before_s + self.spent_s

    @property
    def progress(self) -> float:
        return min(1.0, self.elapsed_s / max(self.plan_s, 1e-9))

    def over(self) -> bool:
        return self.spent_s >= self.budget_s or self.elapsed_s >= self.plan_s


class Ema:
    """An exponential moving average of parameters, updated by one kernel launch per group."""

    def __init__(self, parameters: Iterable[Tensor], decay: float) -> None:
        self.parameters = list(parameters)
        self.average = [p.clone() for p in self.live]
        self.decay = decay

    @property
    def live(self) -> list[Tensor]:
        """The parameters' current storage. nn.LSTM moves its weights when cuDNN runs it for the first time."""
        return [p.detach() for p in self.parameters]

    def update(self) -> None:
        torch._foreach_lerp_(self.average, self.live, 1.0 - self.decay)

    def reset(self) -> None:
        torch._foreach_copy_(self.average, self.live)

    def load(self, average: Sequence[Tensor]) -> None:
        torch._foreach_copy_(self.average, list(average))

    def named(self, net: nn.Module) -> dict[str, Tensor]:
        """Return the averages by the names that the network has for its parameters."""
        return dict(zip((name for name, _ in net.named_parameters()), self.average, strict=True))

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Within the context, the network computes with the averaged weights."""
        kept = [p.clone() for p in self.live]
        torch._foreach_copy_(self.live, self.average)
        try:
            yield
        finally:
            torch._foreach_copy_(self.live, kept)


class Optimizer:
    """AdamW in a form that a CUDA graph can capture: rate, clipping and skipped steps are tensors.

    Gradients are clipped at `slack` times their own running norm, so the scale of the loss does not matter. A
    step whose gradient is not finite changes nothing.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        betas: tuple[float, float] = (0.8, 0.99),
        slack: float = 3.0,
        weight_decay: float = 0.01,
    ) -> None:
        self.parameters = list(parameters)
        device = self.parameters[0].device
        for p in self.parameters:
            p.grad = torch.zeros_like(p)
        self.lr = torch.zeros((), device=device)
        self.adamw = torch.optim.AdamW(
            self.parameters,
            lr=self.lr,
            betas=betas,
            weight_decay=weight_decay,
            fused=True,
            capturable=device.type == "cuda",
        )
        self.slack = slack
        self.usual_norm = torch.zeros((), device=device)
        self.skip = torch.zeros((), device=device)
        # The fused kernel reads this flag on the device, so skipping a step needs no synchronization.
        self.adamw.found_inf = self.skip  # type: ignore[attr-defined]

    def step(self, loss: Tensor, *, retain_graph: bool = False) -> Tensor:
        """Update the parameters from `loss`; return the norm of its gradient before clipping."""
        gradients = torch.autograd.grad(loss, self.parameters, retain_graph=retain_graph)
        own: list[Tensor] = [p.grad for p in self.parameters if p.grad is not None]
        # Keep the own layout: the fused kernel needs the same one for parameter and gradient.
        torch._foreach_copy_(own, gradients)
        norm = torch.nn.utils.get_total_norm(own)
        finite = torch.isfinite(norm)
        self.skip.copy_(1.0 - finite.float())
        usual = torch.where(self.usual_norm > 0, self.usual_norm, norm)
        bounded = torch.where(finite, torch.minimum(norm, self.slack * usual), usual)
        torch._foreach_mul_(own, torch.where(finite, bounded / (norm + 1e-12), torch.ones_like(norm)))
        self.usual_norm.copy_(
            torch.where(torch.isfinite(usual), torch.lerp(usual, bounded, 0.02), self.usual_norm)
        )
        self.adamw.step()
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {"adamw": self.adamw.state_dict(), "usual_norm": self.usual_norm}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adamw.load_state_dict(state["adamw"])
        for group in self.adamw.param_groups:
            group["lr"] = self.lr  # loading replaces the tensor that stages write the rate to
        self.usual_norm.copy_(state["usual_norm"])


class GraphedStep:
    """A step function that is captured as a CUDA graph after a few eager calls, and replayed from then on.

    The eager calls are real steps; they warm up cuDNN, cuFFT, Triton and the allocator. If the capture fails,
    the step stays eager and `capture_error` holds the reason.
    """

    def __init__(self, step: Callable[[], None], *, eager: bool) -> None:
        self.step, self.eager = step, eager
        self.calls = 0
        self.capture_error: str | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.side = None if eager else torch.cuda.Stream()

    def __call__(self) -> None:
        self.calls += 1
        if self.eager:
            self.step()
        elif self.graph is not None:
            self.graph.replay()
            if self.calls % SYNC_EVERY_CALLS == 0:
                torch.cuda.synchronize()
        elif self.side is not None and self.calls <= GRAPH_WARMUP_CALLS:
            torch.cuda.synchronize()
            with torch.cuda.stream(self.side):
                self.step()
            torch.cuda.synchronize()
            # cuDNN's search leaves large workspaces; libraries and other processes allocate outside of this cache.
            torch.cuda.empty_cache()
        else:
            self._capture()

    def forget(self) -> None:
        """Drop the graph, so that the step is captured again; needed when its inputs were replaced."""
        self.graph, self.calls = None, 0

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.side):
                self.step()
        except RuntimeError as error:
            self.capture_error, self.eager = str(error).splitlines()[0], True
            torch.cuda.synchronize()
            self.step()
            return
        self.graph = graph
        graph.replay()


def ignore_progress(record: dict[str, Any]) -> None:
    """Ignore a progress record."""
    del record


class JsonlLog:
    """A log of one JSON object per line, which can be read while training runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, record: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({k: _short(v) for k, v in record.items()}) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def _short(value: Any) -> Any:
    """Round to six digits; JSON has no infinity and no NaN, so they become null."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def progress_line(record: dict[str, Any]) -> str:
    """Format a record for a terminal: `step 120 | mel 0.53 | …`."""
    return " | ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in record.items())


def draw_curves(log: Path, png: Path, keys: Sequence[str], *, across: str = "step") -> None:
    """Draw curves from a JSONL log, one panel per key."""
    import matplotlib  # imported here, because the training machine does not have it

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    records = read_log(log)
    figure, axes = plt.subplots(len(keys), 1, figsize=(8, 2.2 * len(keys)), sharex=True, squeeze=False)
    for axis, key in zip(axes[:, 0], keys, strict=True):
        points = [(r[across], r[key]) for r in records if r.get(key) is not None and across in r]
        axis.plot([p[0] for p in points], [p[1] for p in points], linewidth=0.9)
        axis.set_ylabel(key)
        axis.grid(alpha=0.3)
    axes[-1, 0].set_xlabel(across)
    figure.tight_layout()
    figure.savefig(png, dpi=110)
    plt.close(figure)


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write the file atomically: a job that is killed while writing leaves the previous file intact."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def load_state(path: Path, device: torch.device) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (OSError, RuntimeError, EOFError) as error:
        raise CheckpointError(
            "the training state cannot be read",
            got=f"{path}: {error}",
            allowed="a file that save_state wrote",
            fix="Delete it to start over, or resume from an earlier one.",
        ) from error
    return state


def save_weights(
    tensors: Mapping[str, Tensor],
    path: Path,
    dtype: torch.dtype | None = torch.float16,
    metadata: dict[str, str] | None = None,
) -> None:
    """Write copies of the weights atomically, as `dtype` (None keeps their own)."""
    partial = path.with_name(path.name + ".partial")
    copies = {name: t.detach().to("cpu", dtype).contiguous() for name, t in tensors.items()}
    save_file(copies, partial, metadata)
    partial.replace(path)


class Resumable(Protocol):
    """The state of a stage."""

    ema: Ema
    device: torch.device

    @property
    def net(self) -> nn.Module: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def resume(training: Resumable, state: Path, start_from: Path | None) -> dict[str, Any]:
    """Load the state file if there is one, and return its counters; else load weights, packed or not.

    Raises:
        ConfigError: there is neither a state nor the file of weights, so that training would start from nothing.
    """
    if state.exists():
        loaded = load_state(state, training.device)
        training.load_state_dict(loaded)
        counters: dict[str, Any] = loaded["done"]
        return counters
    if start_from is not None:
        if not start_from.is_file():
            raise ConfigError(
                "the weights to start from are missing",
                got=str(start_from),
                allowed="a file of weights, packed or not",
            )
        training.net.load_state_dict({k: v.float() for k, v in unpack(load_file(start_from)).items()})
        training.ema.reset()
    return {}


def run_steps(
    step: Callable[[], None],
    clock: TimeBudget,
    *,
    log: Callable[[], None],
    save: Callable[[], None],
    log_every_s: float,
    save_every_s: float = 60.0,
) -> None:
    """Call `step` until the time is up; log and save at intervals and at the end."""
    log_due, save_due = Every(log_every_s, clock.started_s), Every(save_every_s, clock.started_s)
    while not clock.over():
        step()
        now = clock.started_s + clock.spent_s
        if log_due(now):
            log()
        if save_due(now):
            save()
    log()
    save()


class Every:
    """A timer that is true once per `seconds`, by the clock values that the stage passes in."""

    def __init__(self, seconds: float, now_s: float) -> None:
        self.seconds, self.due_s = seconds, now_s + seconds

    def __call__(self, now_s: float) -> bool:
        if now_s < self.due_s:
            return False
        self.due_s = now_s + self.seconds
        return True
