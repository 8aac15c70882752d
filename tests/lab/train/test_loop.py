"""The shared parts of training: rates, averages, safe files, logs, and an optimizer that survives bad
steps."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from nightingale.errors import CheckpointError, ConfigError
from nightingale_lab.train.loop import (
    Ema,
    Every,
    GraphedStep,
    JsonlLog,
    Optimizer,
    Schedule,
    draw_curves,
    load_state,
    progress_line,
    read_log,
    resume,
    save_state,
)


def test_the_rate_climbs_then_falls_to_its_floor() -> None:
    schedule = Schedule(peak=1.0, warmup_steps=10, floor=0.1)
    assert schedule.at(0, 0.0) == pytest.approx(0.1)
    assert schedule.at(9, 0.0) == pytest.approx(1.0)
    assert schedule.at(100, 0.5) == pytest.approx(0.55)
    assert schedule.at(100, 1.0) == schedule.at(100, 7.0) == pytest.approx(0.1)


def test_a_fresh_optimizer_warms_up_again_late_in_the_plan() -> None:
    schedule = Schedule(peak=1.0, warmup_steps=10)
    assert schedule.at(0, 0.5) == pytest.approx(schedule.at(10, 0.5) / 10)


def test_the_average_follows_and_can_start_over() -> None:
    weight = torch.zeros(3)
    ema = Ema([weight], decay=0.9)
    weight.fill_(1.0)
    ema.update()
    assert torch.allclose(ema.average[0], torch.full((3,), 0.1))
    ema.reset()
    assert torch.equal(ema.average[0], weight)


def test_the_average_follows_a_parameter_whose_storage_moves() -> None:
    """cuDNN moves the weights of an LSTM when it first runs it."""
    weight = torch.nn.Parameter(torch.zeros(3))
    ema = Ema([weight], decay=0.9)
    with torch.no_grad():
        weight.set_(torch.ones(3))  # type: ignore[call-overload]
    ema.update()
    assert torch.allclose(ema.average[0], torch.full((3,), 0.1))
    with ema.swapped_in():
        assert torch.allclose(weight.detach(), torch.full((3,), 0.1))
    assert torch.equal(weight.detach(), torch.ones(3))


def _line() -> tuple[torch.nn.Linear, torch.Tensor, torch.Tensor]:
    torch_generator = torch.Generator().manual_seed(0)
    line = torch.nn.Linear(4, 1)
    with torch.no_grad():
        line.weight.copy_(torch.randn(1, 4, generator=torch_generator))
        line.bias.zero_()
    x = torch.randn(32, 4, generator=torch_generator)
    return line, x, x.sum(1, keepdim=True)


def test_the_optimizer_learns() -> None:
    line, x, y = _line()
    optimizer = Optimizer(line.parameters())
    optimizer.lr.fill_(0.05)
    losses = []
    for _ in range(100):
        loss = (line(x) - y).square().mean()
        losses.append(loss.item())
        optimizer.step(loss)
    assert losses[-1] < 0.05 * losses[0]


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    line, x, y = _line()
    optimizer = Optimizer(line.parameters())
    optimizer.lr.fill_(0.05)
    optimizer.step((line(x) - y).square().mean())
    before, usual = copy.deepcopy(line.state_dict()), optimizer.usual_norm.clone()
    optimizer.step((line(x) * float("nan")).mean())
    assert all(torch.equal(before[name], value) for name, value in line.state_dict().items())
    assert torch.equal(optimizer.usual_norm, usual)
    optimizer.step((line(x) - y).square().mean())
    assert not torch.equal(before["weight"], line.weight)
    assert torch.isfinite(line.weight).all()


def test_an_outlier_is_clipped_to_a_few_times_the_usual_norm() -> None:
    line, x, y = _line()
    optimizer = Optimizer(line.parameters(), slack=3.0)
    optimizer.step((line(x) - y).square().mean())
    usual = optimizer.usual_norm.item()
    norm = optimizer.step(1e4 * (line(x) - y).square().mean()).item()
    own = torch.nn.utils.get_total_norm([p.grad for p in line.parameters() if p.grad is not None]).item()
    assert norm > 1e3 * usual
    assert own == pytest.approx(3 * usual, rel=1e-3)


def test_a_restored_optimizer_obeys_the_rate_and_continues_exactly(tmp_path: Path) -> None:
    line, x, y = _line()
    first = Optimizer(line.parameters())
    first.lr.fill_(0.05)
    for _ in range(3):
        first.step((line(x) - y).square().mean())
    save_state(tmp_path / "s.pt", {"line": line.state_dict(), "optimizer": first.state_dict()})
    again, _, _ = _line()
    second = Optimizer(again.parameters())
    state = load_state(tmp_path / "s.pt", torch.device("cpu"))
    again.load_state_dict(state["line"])
    second.load_state_dict(state["optimizer"])
    second.lr.fill_(0.05)
    for optimizer, net in ((first, line), (second, again)):
        optimizer.step((net(x) - y).square().mean())
    assert torch.equal(line.weight, again.weight)


def test_a_broken_write_leaves_the_old_state(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    save_state(path, {"step": 1})
    with pytest.raises(Exception, match=r"pickle|local object|Can't"):
        save_state(path, {"step": lambda: 2})
    assert load_state(path, torch.device("cpu")) == {"step": 1}


def test_a_truncated_state_is_refused_clearly(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    save_state(path, {"weights": torch.zeros(1000)})
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(CheckpointError, match=r"state\.pt"):
        load_state(path, torch.device("cpu"))


def test_weights_to_start_from_that_are_missing_are_refused(tmp_path: Path) -> None:
    nothing: Any = None
    with pytest.raises(ConfigError, match="missing"):
        resume(nothing, tmp_path / "t3.state.pt", tmp_path / "t3.safetensors")


def test_the_log_is_appended_and_never_invalid_json(tmp_path: Path) -> None:
    for step, loss in ((1, 0.123456789), (2, float("nan"))):
        JsonlLog(tmp_path / "log.jsonl").write({"step": step, "loss": loss})
    assert read_log(tmp_path / "log.jsonl") == [{"step": 1, "loss": 0.123457}, {"step": 2, "loss": None}]
    assert progress_line({"step": 1, "loss": 0.123456789}) == "step 1 | loss 0.1235"


def test_curves_are_drawn_from_the_log(tmp_path: Path) -> None:
    for step in range(3):
        JsonlLog(tmp_path / "log.jsonl").write({"step": step, "mel": 1.0 / (step + 1)})
    draw_curves(tmp_path / "log.jsonl", tmp_path / "curves.png", ["mel", "never"])
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_an_eager_step_is_called_as_it_is() -> None:
    calls: list[int] = []
    step = GraphedStep(lambda: calls.append(1), eager=True)
    for _ in range(5):
        step()
    assert len(calls) == 5
    assert step.capture_error is None


def test_every_is_true_once_per_interval() -> None:
    due = Every(5.0, now_s=100.0)
    assert [due(t) for t in (101.0, 105.0, 106.0, 110.0, 111.0)] == [False, True, False, True, False]
