"""Windows of the flow, in any batch, are those of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from backends.watching import WAITS, HostWatch
from parity.tiny import TINY_FLOW, TINY_MEANFLOW, fill, gaussian, ids
from torch import Tensor

from nightingale.backends.cuda.flow.flow_steps import FlowSteps
from nightingale.backends.cuda.flow.flow_windows import FlowWindow, FlowWindows, VoicePrompt
from nightingale.backends.cuda.random import normal
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.s3gen.flow import Flow

LOOKAHEAD = 3


@pytest.fixture(params=["guided", "meanflow"])
def flow(request: pytest.FixtureRequest) -> Flow:
    """Use double precision, so that a difference is not rounding."""
    return fill(Flow(TINY_FLOW if request.param == "guided" else TINY_MEANFLOW)).double()


def prompt_of(flow: Flow, tokens: int, seed: int) -> VoicePrompt:
    weight = flow.encoder_proj.weight
    speaker = gaussian((1, flow.config.speaker_width), seed).to(weight)
    with torch.inference_mode():
        return VoicePrompt(
            ids=tuple(ids(max(tokens, 1), seed)[0].tolist())[:tokens],
            mel=gaussian((2 * tokens, 80), seed).to(weight),
            speaker=flow.speaker(speaker)[0],
        )


def window_of(flow: Flow, prompt: int, count: int, *, ahead: int = 0, start: int = 0) -> FlowWindow:
    own = ids(count + ahead, prompt + count)[0].tolist()
    voice = prompt_of(flow, prompt, seed=prompt)
    return FlowWindow(prompt=voice, ids=own, tokens=count, start=start, key=7 * prompt + count)


@torch.inference_mode()
def reference(flow: Flow, window: FlowWindow) -> Tensor:
    """Render a window alone with `Flow.solve`."""
    weight, prompt = flow.encoder_proj.weight, 2 * len(window.prompt.ids)
    known = torch.tensor([[*window.prompt.ids, *window.ids]], device=weight.device)
    mu = flow.encode(known, lookahead=len(window.ids) - window.tokens)
    key = torch.tensor([window.key], device=weight.device)
    parts = [(0, prompt), (prompt + 2 * window.start, 2 * window.tokens)]
    noise = torch.cat([normal(key, torch.full_like(key, at), count, 80) for at, count in parts], dim=2)
    flow.speaker = lambda _: window.prompt.speaker[None]  # type: ignore[method-assign]
    mel = flow.denormalize_mel(window.prompt.mel.T[None])
    try:
        out = flow.solve(mu, mel, torch.zeros(0), noise.to(weight), [None] * flow.steps)
    finally:
        del flow.speaker
    return out[0, :, prompt:]


def compare(flow: Flow, found: Sequence[Tensor], windows: Sequence[FlowWindow], bound: float) -> None:
    assert len(found) == len(windows)
    for mel, window in zip(found, windows, strict=True):
        expected = reference(flow, window)
        assert mel.shape == expected.shape == (80, 2 * window.tokens)
        assert expected.std() > 0.1
        torch.testing.assert_close(mel, expected, rtol=0, atol=bound)


def mixed(flow: Flow) -> list[FlowWindow]:
    """Return windows of several voices: a whole utterance, blocks of streams, one without a prompt."""
    return [
        window_of(flow, 9, 11),
        window_of(flow, 5, 4, ahead=LOOKAHEAD),
        window_of(flow, 14, 7, ahead=LOOKAHEAD, start=20),
        window_of(flow, 0, 6),
    ]


def test_a_batch_of_voices_is_that_of_each_one_alone(flow: Flow) -> None:
    render, windows = FlowWindows(FlowSteps(flow), batches=(1, 4), tokens=(16, 30)), mixed(flow)
    compare(flow, render(windows), windows, 1e-9)
    compare(flow, render(windows[1:2]), windows[1:2], 1e-9)


def test_a_batch_that_is_too_large_is_divided(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    from nightingale.backends.cuda.flow import flow_windows

    windows = mixed(flow)
    monkeypatch.setattr(flow_windows, "MAX_ROWS", 70)
    render = FlowWindows(FlowSteps(flow), batches=(1, 2), tokens=(30,))
    assert [len(batch) for batch in render._batches(windows)] == [2, 2]
    assert [len(batch) for batch in render._batches(windows[:1])] == [1]
    compare(flow, render(windows), windows, 1e-9)


def test_another_number_of_steps(flow: Flow) -> None:
    render, windows = FlowWindows(FlowSteps(flow, steps=3), batches=(1,), tokens=(30,)), mixed(flow)[:1]
    flow.steps = 3
    compare(flow, render(windows), windows, 1e-9)


def test_the_host_reads_nothing(flow: Flow) -> None:
    render, windows = FlowWindows(FlowSteps(flow)), mixed(flow)
    with HostWatch() as watch:
        render(windows)
    assert watch.operations > 100
    assert not [name for name in watch.found if name.startswith((*WAITS, "aten.item"))]


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_bfloat16_stays_near_the_reference_and_leaves_its_weights_alone(flow: Flow) -> None:
    flow = flow.float()
    before = {name: value.clone() for name, value in flow.state_dict().items()}
    (window,) = windows = mixed(flow)[:1]
    (mel,) = FlowWindows(FlowSteps(flow, precision=torch.bfloat16))(windows)
    expected = reference(flow, window)
    assert 0 < (mel - expected).norm() / expected.norm() < 0.02
    assert all(torch.equal(value, before[name]) for name, value in flow.state_dict().items())


def test_more_tokens_than_the_largest_bucket_are_refused(flow: Flow) -> None:
    with pytest.raises(ConfigError, match="more tokens"):
        FlowWindows(FlowSteps(flow), tokens=(16,))(mixed(flow)[:1])


def test_a_block_causal_flow_is_refused(flow: Flow) -> None:
    causal = fill(Flow(replace(flow.config, block_causal=True)))
    with pytest.raises(ConfigError, match="block-causal"):
        FlowWindows(FlowSteps(causal))


@pytest.mark.requires_cuda
def test_on_a_gpu_windows_are_those_of_the_reference(flow: Flow) -> None:
    """Encoder graphs and the noise are checked in float64, which only library calls have."""
    flow = flow.cuda()
    render, windows = FlowWindows(FlowSteps(flow), kernels="library"), mixed(flow)
    for _ in range(2):
        compare(flow, render(windows), windows, 1e-6)
    assert {graph.mode for graph in render._encoders.values()} == {"graph"}
