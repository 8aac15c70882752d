"""The flow in graphs gives the mel of the reference in any bucket and any batch."""

from __future__ import annotations

import pytest
import torch
from backends.watching import HostWatch
from parity.tiny import TINY_FLOW, TINY_MEANFLOW, fill, gaussian, ids
from torch import Tensor

from nightingale.backends.cuda.flow.flow_steps import FlowSteps
from nightingale.backends.cuda.random import normal
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale_lab.bench.whole_flow import WholeFlow

PROMPT = 4
KEY, FULL = torch.tensor([99]), torch.tensor([2 * PROMPT])


@pytest.fixture(params=["guided", "meanflow"])
def flow(request: pytest.FixtureRequest) -> Flow:
    """Use double precision, so that a difference is not rounding."""
    return fill(Flow(TINY_FLOW if request.param == "guided" else TINY_MEANFLOW)).double()


def prompt_mel(seed: int) -> Tensor:
    return gaussian((1, 80, 2 * PROMPT), seed).double()


def speaker(flow: Flow, seed: int) -> Tensor:
    return gaussian((1, flow.config.speaker_width), seed).double()


@torch.inference_mode()
def reference(flow: Flow, tokens: Tensor, seed: int, key: Tensor = KEY) -> Tensor:
    noise = normal(key, torch.zeros(1, dtype=torch.int64), 2 * tokens.shape[1], 80).double()
    return flow(tokens, prompt_mel=prompt_mel(seed), speaker=speaker(flow, seed), noise=noise)


@pytest.mark.parametrize("bucket", [11, 16])
def test_a_padded_bucket_gives_the_mel_of_the_reference(flow: Flow, bucket: int) -> None:
    tokens = ids(11, 5)
    whole = WholeFlow(FlowSteps(flow), batches=(1,), tokens=(bucket,))
    mel = whole(
        tokens,
        torch.tensor([11]),
        prompt_mel=prompt_mel(1),
        prompt_frames=FULL,
        speaker=speaker(flow, 1),
        key=KEY,
    )
    expected = reference(flow, tokens, 1)
    torch.testing.assert_close(mel[:, :, 2 * PROMPT :], expected, rtol=0, atol=1e-9)
    assert expected.std() > 0.1


def test_each_utterance_of_a_batch_is_rendered_as_alone(flow: Flow) -> None:
    lengths, keys = [9, 12, 6], torch.tensor([3, 4, 5])
    rows = [ids(n, n) for n in lengths]
    mel = WholeFlow(FlowSteps(flow), batches=(4,), tokens=(14,))(
        torch.cat([torch.nn.functional.pad(row, (0, 12 - row.shape[1])) for row in rows]),
        torch.tensor(lengths),
        prompt_frames=FULL.expand(3),
        prompt_mel=torch.cat([prompt_mel(n) for n in lengths]),
        speaker=torch.cat([speaker(flow, n) for n in lengths]),
        key=keys,
    )
    for row, n in enumerate(lengths):
        expected = reference(flow, rows[row], n, keys[row : row + 1])[0]
        torch.testing.assert_close(mel[row, :, 2 * PROMPT : 2 * n], expected, rtol=0, atol=1e-9)


def test_the_host_reads_nothing(flow: Flow) -> None:
    whole = WholeFlow(FlowSteps(flow), batches=(1,), tokens=(8,))
    tokens, lengths, cond, who = (
        ids(8, 1),
        torch.tensor([7]),
        gaussian((1, 80, 16), 1).double(),
        speaker(flow, 1),
    )
    with torch.no_grad(), HostWatch() as watch:
        whole.render(tokens, lengths, cond, who, KEY)
    assert not watch.found


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_bfloat16_stays_near_the_reference_and_leaves_its_weights_alone(flow: Flow) -> None:
    flow, tokens = flow.float(), ids(11, 5)
    before = {name: value.clone() for name, value in flow.state_dict().items()}
    whole = WholeFlow(FlowSteps(flow, precision=torch.bfloat16), batches=(1,), tokens=(11,))
    prompt, who = prompt_mel(1).float(), speaker(flow, 1).float()
    mel = whole(tokens, torch.tensor([11]), prompt_mel=prompt, prompt_frames=FULL, speaker=who, key=KEY)
    noise = normal(KEY, torch.zeros(1, dtype=torch.int64), 22, 80)
    with torch.inference_mode():
        expected = flow(tokens, prompt_mel=prompt, speaker=who, noise=noise)
    error = (mel[:, :, 2 * PROMPT :] - expected).norm() / expected.norm()
    assert 0 < error < 0.02
    assert all(torch.equal(value, before[name]) for name, value in flow.state_dict().items())


def test_more_tokens_than_the_largest_bucket_are_refused(flow: Flow) -> None:
    with pytest.raises(ConfigError, match="more tokens"):
        WholeFlow(FlowSteps(flow), batches=(1,), tokens=(8,))(
            ids(9, 1),
            torch.tensor([9]),
            prompt_mel=prompt_mel(1),
            prompt_frames=FULL,
            speaker=speaker(flow, 1),
            key=KEY,
        )


@pytest.mark.requires_cuda
def test_the_graph_gives_the_mel_of_the_reference(flow: Flow) -> None:
    tokens, expected = ids(11, 5), reference(flow, ids(11, 5), 1)
    who = speaker(flow, 1).cuda()
    whole = WholeFlow(FlowSteps(flow.cuda()), batches=(1,), tokens=(16,))
    for _ in range(2):
        mel = whole(
            tokens.cuda(),
            torch.tensor([11]).cuda(),
            prompt_mel=prompt_mel(1).cuda(),
            prompt_frames=FULL.cuda(),
            speaker=who,
            key=KEY.cuda(),
        )
    torch.testing.assert_close(mel[:, :, 2 * PROMPT :].cpu(), expected, rtol=0, atol=1e-6)
    assert [graph.mode for graph in whole._graphs.values()] == ["graph"]
