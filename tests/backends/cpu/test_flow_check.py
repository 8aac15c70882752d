"""The flow is rendered in int8 only if the weights that are loaded allow it."""

from __future__ import annotations

import logging

import pytest
import torch
from parity.tiny import fill

from nightingale.backends.cpu import opening
from nightingale.backends.cpu.capabilities import layers_unsupported_reason
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.config import FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow

pytestmark = pytest.mark.skipif(
    layers_unsupported_reason() is not None, reason=str(layers_unsupported_reason())
)
SMALL = {"encoder_width": 64, "encoder_heads": 4, "encoder_blocks": 1, "encoder_up_blocks": 1}


@pytest.fixture(params=[True, False], ids=["meanflow", "guided"])
def flow(request: pytest.FixtureRequest) -> Flow:
    config = FlowConfig(
        **SMALL, encoder_ffn=64, estimator_mid_stages=1, estimator_stage_blocks=1, meanflow=request.param
    )
    return fill(Flow(config)).eval()


def hift() -> Hift:
    torch.manual_seed(0)
    return Hift(HiftConfig(base_channels=32, f0_channels=16)).eval().requires_grad_(False)


def test_the_error_of_the_loaded_weights_is_measured(flow: Flow, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rounded, _ = opening._to_int8(flow, hift())
    assert rounded is not flow
    assert 0.001 < opening.velocity_error(rounded, flow) < opening.MAX_VELOCITY_ERROR
    assert not caplog.records


def test_weights_that_int8_does_not_fit_stay_in_float32(flow: Flow, caplog: pytest.LogCaptureFixture) -> None:
    """One channel takes the range of all others in the inputs of products that do not use it."""
    with torch.no_grad():
        for name, weight in flow.named_parameters():
            if name.endswith(("norm1.weight", "norm3.weight")):
                weight[7] = 3000.0
            elif name.endswith(("to_q.weight", "to_k.weight", "to_v.weight", "net.0.proj.weight")):
                weight[:, 7] = 0.0
    with caplog.at_level(logging.WARNING):
        rounded, _ = opening._to_int8(flow, hift())
    assert rounded is flow
    assert "float32" in caplog.text


def test_a_vocoder_that_int8_does_not_fit_stays_in_float32(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights of variance 1 amplify every rounding."""
    plain, amplifying = hift(), fill(hift())
    with caplog.at_level(logging.WARNING):
        _, rounded = opening._to_int8(flow, plain)
        # Of the float32 kernels it would be less than 1e-5.
        assert 1e-4 < opening.spectrum_error(rounded, plain) < opening.MAX_SPECTRUM_ERROR
        assert not caplog.records
        _, exact = opening._to_int8(flow, amplifying)
    assert opening.spectrum_error(exact, amplifying) < 1e-4
    assert "spectrum" in caplog.text
