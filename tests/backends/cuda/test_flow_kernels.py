"""The flow's Triton kernels over packed rows render the windows of library calls.

With a GPU they are compiled; without one they run in Triton's interpreter.
"""

from __future__ import annotations

import pytest
import torch
from backends.cuda.test_flow_windows import mixed, window_of
from parity.tiny import TINY_FLOW, TINY_MEANFLOW, fill

from nightingale.backends.cuda.flow.flow_steps import FlowSteps
from nightingale.backends.cuda.flow.flow_windows import FlowWindow, FlowWindows
from nightingale.models.chatterbox.s3gen.flow import Flow

pytestmark = pytest.mark.thorough  # Triton's interpreter takes seconds for a kernel

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


def tiny_flow(*, guided: bool) -> Flow:
    return fill(Flow(TINY_FLOW if guided else TINY_MEANFLOW)).to(DEVICE)


def check(flow: Flow, windows: list[FlowWindow], *, steps: int) -> None:
    # Left alone, cuDNN rounds the inputs of a convolution in float32 to ten bits; ours are not rounded.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        ours, theirs = (
            FlowWindows(FlowSteps(flow, steps=steps), kernels=kernels)(windows)
            for kernels in ("triton", "library")
        )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("guided", [True, False])
def test_a_window_is_that_of_library_calls(guided: bool) -> None:
    flow = tiny_flow(guided=guided)
    check(flow, [window_of(flow, 5, 4)], steps=2 if CUDA else 1)


@pytest.mark.parametrize("tma", [False, True])
def test_windows_of_a_large_batch_are_those_of_library_calls(
    tma: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nightingale.backends.cuda.flow import flow_launches

    flow = tiny_flow(guided=False)
    monkeypatch.setattr(flow_launches, "MANY_ROWS", 1)
    monkeypatch.setattr(flow_launches, "uses_tma", lambda x: tma)
    windows = mixed(flow)
    check(flow, windows if CUDA else windows[1:3], steps=2 if CUDA else 1)


def test_windows_begin_at_tiles_and_graphs_have_few_sizes() -> None:
    from nightingale.backends.cuda.flow.packed_estimator import PackedRows, row_bucket

    assert PackedRows.of([530, 64, 1]) == ([0, 576, 640], 704)
    sizes = {row_bucket(64 * tiles) for tiles in range(1, 193)}
    assert all(row_bucket(size) == size for size in sizes)
    assert all(rows <= row_bucket(rows) <= max(rows + 63, 1.125 * rows) for rows in range(1, 12289))
    assert len(sizes) < 50


@pytest.mark.requires_cuda
@pytest.mark.parametrize("guided", [True, False])
def test_on_a_gpu_large_tiles_and_graphs_give_the_windows_of_library_calls(guided: bool) -> None:
    from nightingale.backends.cuda.flow import flow_launches

    flow = tiny_flow(guided=guided)
    check(flow, mixed(flow), steps=2)
    windows = mixed(flow)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_launches, "MANY_ROWS", 1)
        check(flow, windows, steps=2)
        steps = FlowSteps(flow, steps=3, precision=torch.bfloat16)
        expected = FlowWindows(steps, kernels="triton", mode="eager")(windows)
        graphs = FlowWindows(steps, kernels="triton", mode="graph")
        for _ in range(5):
            found = graphs(windows)
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
