"""A recorded function: the same result, and a word where the shapes are others."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from torch import Tensor

from nightingale.backends.cuda.graphs import (
    POOL,
    RECORDING,
    Replay,
    bucket_for,
    how_on,
    own_stream,
    reproducible,
)
from nightingale.errors import ConfigError, DeviceError

CPU = torch.device("cpu")


def twice(x: Tensor, y: Tensor) -> Tensor:
    return 2 * x + y


def replay_on(device: torch.device) -> Replay[Tensor]:
    inputs = {"x": torch.ones(2, 3), "y": torch.zeros(3)}
    return Replay("twice", twice, inputs, how=how_on(device), device=device)


def test_a_replay_is_the_function_of_its_last_inputs() -> None:
    replay = replay_on(CPU)
    assert replay(x=torch.full((2, 3), 4.0)).tolist() == [[8.0] * 3] * 2
    assert replay(y=torch.arange(3.0)).tolist() == [[8.0, 9.0, 10.0]] * 2, "what is left out stays"
    assert replay.report.how == "eager"
    assert replay.report.shapes == {"x": (2, 3), "y": (3,)}


def test_the_buffers_are_the_replays_own() -> None:
    x = torch.ones(2, 3)
    replay = Replay("twice", twice, {"x": x, "y": torch.zeros(3)}, how="eager", device=CPU)
    x.fill_(7.0)
    assert replay().tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize(
    "wrong", [{"x": torch.ones(2, 4)}, {"x": torch.ones(2, 3, dtype=torch.float64)}, {"z": torch.ones(1)}]
)
def test_another_shape_is_refused_in_words(wrong: dict[str, Tensor]) -> None:
    with pytest.raises(ConfigError, match=r"'twice' was recorded for other inputs.*x \(2, 3\) of float32"):
        replay_on(CPU)(**wrong)


def test_a_graph_without_a_gpu_is_refused() -> None:
    with pytest.raises(DeviceError, match="cannot be recorded"):
        Replay("twice", twice, {"x": torch.ones(1), "y": torch.ones(1)}, how="graph", device=CPU)


def test_the_smallest_bucket_that_holds_it_is_taken() -> None:
    assert [bucket_for(n, (1, 4, 8), what="rows") for n in (1, 2, 4, 5, 8)] == [1, 4, 4, 8, 8]
    with pytest.raises(ConfigError, match="more rows"):
        bucket_for(9, (1, 4, 8), what="rows")


def test_while_something_is_recorded_sums_have_one_order_and_then_the_switch_is_as_it_was() -> None:
    before = torch.backends.cudnn.deterministic
    with reproducible():
        assert torch.backends.cudnn.deterministic
        with reproducible():
            assert torch.backends.cudnn.deterministic
        assert torch.backends.cudnn.deterministic, "the inner one does not end the outer one"
    assert torch.backends.cudnn.deterministic == before
    with pytest.raises(ZeroDivisionError), reproducible():
        raise ZeroDivisionError
    assert torch.backends.cudnn.deterministic == before


@pytest.mark.requires_cuda
def test_nobody_is_given_the_stream_of_somebody_else() -> None:
    device = torch.device("cuda")
    held = [own_stream(device, RECORDING) for _ in range(8)]
    later = [own_stream(device, RECORDING).stream.cuda_stream for _ in range(40)]  # each is let go of at once
    assert not {own.stream.cuda_stream for own in held} & set(later)


def test_streams_are_handed_out_in_turn_but_never_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: streams that are numbers, handed out again and again as torch does it."""
    numbers = cycle(range(POOL))

    class Stream:
        __slots__ = ("cuda_stream",)  # and no weak references, which torch's do not survive

        def __init__(self, device: torch.device, priority: int) -> None:
            assert (device.type, priority) == ("cuda", RECORDING)
            self.cuda_stream = next(numbers)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    device = torch.device("cuda")
    held = [own_stream(device, RECORDING) for _ in range(8)]
    later = [own_stream(device, RECORDING).stream.cuda_stream for _ in range(3 * POOL)]
    assert not {own.stream.cuda_stream for own in held} & set(later)
    held += [own_stream(device, RECORDING) for _ in range(POOL - 8)]
    assert len({own.stream.cuda_stream for own in held}) == POOL
    with pytest.raises(DeviceError, match="no CUDA stream is left"):
        own_stream(device, RECORDING)
    del held[3]
    assert own_stream(device, RECORDING).stream.cuda_stream not in {own.stream.cuda_stream for own in held}


@pytest.mark.requires_cuda
def test_a_graph_gives_what_its_twin_gives() -> None:
    one, other = replay_on(torch.device("cuda")), replay_on(CPU)
    for number in range(3):
        x = torch.full((2, 3), float(number))
        assert one(x=x.cuda()).tolist() == other(x=x).tolist()
    assert one.report.how == "graph"
    with pytest.raises(ConfigError):
        one(x=torch.ones(5).cuda())
