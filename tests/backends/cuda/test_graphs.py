"""A captured function gives the function's result and refuses other shapes."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from torch import Tensor

from nightingale.backends.cuda.graphs import (
    CAPTURE_PRIORITY,
    STREAMS_PER_PRIORITY,
    GraphCache,
    GraphedFunction,
    bucket_for,
    deterministic_cudnn,
    reserve_stream,
)
from nightingale.errors import ConfigError, DeviceError

CPU = torch.device("cpu")


def twice(x: Tensor, y: Tensor) -> Tensor:
    return 2 * x + y


def replay_on(device: torch.device) -> GraphedFunction[Tensor]:
    graphs: GraphCache[Tensor] = GraphCache(device)
    graphs.capture(3, "twice", twice, {"x": torch.ones(2, 3), "y": torch.zeros(3)})
    return graphs[3]


def test_a_call_uses_its_last_inputs() -> None:
    replay = replay_on(CPU)
    assert replay(x=torch.full((2, 3), 4.0)).tolist() == [[8.0] * 3] * 2
    assert replay(y=torch.arange(3.0)).tolist() == [[8.0, 9.0, 10.0]] * 2, "what is left out stays"
    assert replay.mode == "eager"


def test_the_buffers_are_not_shared_with_the_caller() -> None:
    x = torch.ones(2, 3)
    replay = GraphedFunction("twice", twice, {"x": x, "y": torch.zeros(3)}, device=CPU)
    x.fill_(7.0)
    assert replay().tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize(
    "wrong", [{"x": torch.ones(2, 4)}, {"x": torch.ones(2, 3, dtype=torch.float64)}, {"z": torch.ones(1)}]
)
def test_another_shape_is_refused(wrong: dict[str, Tensor]) -> None:
    with pytest.raises(ConfigError, match=r"'twice' was captured for other inputs.*x \(2, 3\) of float32"):
        replay_on(CPU)(**wrong)


def test_a_graph_without_a_gpu_is_refused() -> None:
    with pytest.raises(DeviceError, match="CUDA graphs cannot be captured: got the device 'cpu'"):
        GraphCache(CPU, "graph")


def test_the_smallest_bucket_that_holds_it_is_taken() -> None:
    assert [bucket_for(n, (1, 4, 8), what="rows") for n in (1, 2, 4, 5, 8)] == [1, 4, 4, 8, 8]
    with pytest.raises(ConfigError, match="more rows"):
        bucket_for(9, (1, 4, 8), what="rows")


def test_cudnn_is_deterministic_during_a_capture_and_then_as_before() -> None:
    before = torch.backends.cudnn.deterministic
    with deterministic_cudnn():
        assert torch.backends.cudnn.deterministic
        with deterministic_cudnn():
            assert torch.backends.cudnn.deterministic
        assert torch.backends.cudnn.deterministic, "the inner one does not end the outer one"
    assert torch.backends.cudnn.deterministic == before
    with pytest.raises(ZeroDivisionError), deterministic_cudnn():
        raise ZeroDivisionError
    assert torch.backends.cudnn.deterministic == before


class Owner:
    """An owner of a reserved stream."""

    def __init__(self) -> None:
        self.number = reserve_stream(torch.device("cuda"), CAPTURE_PRIORITY, self).cuda_stream


def numbers_of(owners: list[Owner]) -> set[int]:
    return {owner.number for owner in owners}


@pytest.mark.requires_cuda
def test_a_reserved_stream_is_not_given_out_again() -> None:
    reserved = [Owner() for _ in range(8)]
    later = {Owner().number for _ in range(40)}  # each is let go of at once
    assert not numbers_of(reserved) & later


def test_streams_are_handed_out_in_turn_but_never_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: streams that are numbers, handed out again and again as torch does it."""
    numbers = cycle(range(STREAMS_PER_PRIORITY))

    class Stream:
        __slots__ = ("cuda_stream",)  # and no weak references, which torch's do not survive

        def __init__(self, device: torch.device, priority: int) -> None:
            assert (device.type, priority) == ("cuda", CAPTURE_PRIORITY)
            self.cuda_stream = next(numbers)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    reserved = [Owner() for _ in range(8)]
    later = {Owner().number for _ in range(3 * STREAMS_PER_PRIORITY)}
    assert not numbers_of(reserved) & later
    reserved += [Owner() for _ in range(STREAMS_PER_PRIORITY - 8)]
    assert len(numbers_of(reserved)) == STREAMS_PER_PRIORITY
    with pytest.raises(DeviceError, match="no CUDA stream is left"):
        Owner()
    del reserved[3]
    assert Owner().number not in numbers_of(reserved)


@pytest.mark.requires_cuda
def test_a_graph_gives_the_result_of_eager_mode() -> None:
    one, other = replay_on(torch.device("cuda")), replay_on(CPU)
    for number in range(3):
        x = torch.full((2, 3), float(number))
        assert one(x=x.cuda()).tolist() == other(x=x).tolist()
    assert one.mode == "graph"
    with pytest.raises(ConfigError, match=r"x \(5,\) of float32"):
        one(x=torch.ones(5).cuda())
