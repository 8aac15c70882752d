"""The flow: equal to upstream on recorded cases, independent of padding and, in blocks, of later tokens."""

from __future__ import annotations

import pytest
import torch
from parity import tiny
from torch import Tensor

from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.flow import Flow, cosine_times, integrate, linear_times

CONFIGS = {"flow": tiny.TINY_FLOW, "meanflow": tiny.TINY_MEANFLOW}
TOKENS = tiny.FLOW_PROMPT_TOKENS + tiny.FLOW_TOKENS


@pytest.fixture(scope="module", params=["flow", "meanflow"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def nets() -> dict[str, Flow]:
    return {name: tiny.fill(Flow(config)) for name, config in CONFIGS.items()}


def render(
    net: Flow,
    ids: Tensor,
    valid: Tensor | None = None,
    blocks: Tensor | None = None,
    steps: int | None = None,
) -> Tensor:
    rows, tokens = ids.shape
    mel: Tensor = net(
        ids,
        prompt_mel=tiny.scatter((1, 2 * tiny.FLOW_PROMPT_TOKENS, 80), 5).transpose(1, 2).expand(rows, -1, -1),
        speaker=tiny.scatter((1, 192), 6).expand(rows, -1),
        noise=tiny.gaussian((1, 80, 2 * TOKENS), 3)[..., : 2 * tokens].expand(rows, -1, -1),
        valid=valid,
        blocks=blocks,
        steps=steps,
    )
    return mel


def test_the_encoder_equals_upstreams(nets: dict[str, Flow], kind: str) -> None:
    golden = tiny.goldens()[f"{kind}.mu"]
    torch.testing.assert_close(nets[kind].encode(tiny.ids(TOKENS, 4)), golden, rtol=1e-4, atol=1e-4)


def test_mel_for_fixed_noise_equals_upstreams(nets: dict[str, Flow], kind: str) -> None:
    golden = tiny.goldens()[f"{kind}.mel"]
    torch.testing.assert_close(render(nets[kind], tiny.ids(TOKENS, 4)), golden, rtol=1e-4, atol=1e-4)


def test_a_padded_row_equals_the_row_alone(nets: dict[str, Flow], kind: str) -> None:
    net, short = nets[kind], TOKENS - 4
    ids = torch.cat([tiny.ids(TOKENS, 4), tiny.ids(TOKENS, 20)])
    valid = torch.arange(TOKENS)[None] < torch.tensor([[TOKENS], [short]])
    both = render(net, ids, valid=valid)
    frames = 2 * (short - tiny.FLOW_PROMPT_TOKENS)
    torch.testing.assert_close(both[0], render(net, ids[:1])[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(both[1, :, :frames], render(net, ids[1:, :short])[0], rtol=1e-4, atol=1e-4)


def test_the_contents_of_padding_do_not_matter(nets: dict[str, Flow], kind: str) -> None:
    short = TOKENS - 4
    valid = torch.arange(TOKENS)[None] < short
    ids, other = tiny.ids(TOKENS, 4), tiny.ids(TOKENS, 21)
    other[:, :short] = ids[:, :short]
    frames = 2 * (short - tiny.FLOW_PROMPT_TOKENS)
    a, b = (render(nets[kind], x, valid=valid)[..., :frames] for x in (ids, other))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("known", [6, 8, 9])
def test_in_blocks_later_tokens_never_change_earlier_frames(
    nets: dict[str, Flow], kind: str, known: int
) -> None:
    """A block is complete once the lookahead of its last token is known."""
    blocks = (torch.arange(TOKENS)[None] - (known - LOOKAHEAD_TOKENS)).div(4, rounding_mode="floor")
    ids, other = tiny.ids(TOKENS, 4), tiny.ids(TOKENS, 22)
    other[:, :known] = ids[:, :known]
    net = nets[kind]
    past = 2 * (known - LOOKAHEAD_TOKENS)
    mu = [net.encode(x, blocks=blocks) for x in (ids, other)]
    torch.testing.assert_close(mu[0][..., :past], mu[1][..., :past], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(mu[0][..., past:], mu[1][..., past:], atol=1e-2)
    spoken = max(0, past - 2 * tiny.FLOW_PROMPT_TOKENS)
    mel = [render(net, x, blocks=blocks) for x in (ids, other)]
    torch.testing.assert_close(mel[0][..., :spoken], mel[1][..., :spoken], rtol=1e-5, atol=1e-5)


def test_without_blocks_later_tokens_change_earlier_frames(nets: dict[str, Flow]) -> None:
    ids, other = tiny.ids(TOKENS, 4), tiny.ids(TOKENS, 22)
    other[:, :-1] = ids[:, :-1]
    a, b = (nets["flow"].encode(x)[..., :2] for x in (ids, other))
    assert not torch.allclose(a, b, atol=1e-4)


def test_the_lookahead_layer_looks_three_tokens_ahead(nets: dict[str, Flow]) -> None:
    layer = nets["flow"].encoder.pre_lookahead_layer
    x = tiny.scatter((1, 10, 64), 23)
    other = x.clone()
    other[:, 6] += 1
    changed = (layer(x) != layer(other)).any(dim=-1)[0].nonzero().flatten().tolist()
    # Earlier tokens: the lookahead. Later tokens: the second convolution looks back by two.
    assert changed == [3, 4, 5, 6, 7, 8]


def test_guidance_of_a_batch_equals_each_row_alone(nets: dict[str, Flow]) -> None:
    ids = torch.cat([tiny.ids(TOKENS, 4), tiny.ids(TOKENS, 20)])
    both = render(nets["flow"], ids, steps=2)
    alone = torch.cat([render(nets["flow"], row[None], steps=2) for row in ids])
    torch.testing.assert_close(both, alone, rtol=1e-4, atol=1e-4)


def test_cosine_times_have_fine_steps_first() -> None:
    expected = [
        0,
        0.012312,
        0.048943,
        0.108993,
        0.190983,
        0.292893,
        0.412215,
        0.546010,
        0.690983,
        0.843566,
        1,
    ]
    assert cosine_times(10) == pytest.approx(expected, abs=1e-6)
    assert linear_times(2) == [0, 0.5, 1]


def test_integration_follows_a_constant_velocity_exactly() -> None:
    start = tiny.scatter((1, 2, 3), 24)
    end = integrate(lambda x, t, r: torch.full_like(x, 2.0), start, cosine_times(7))
    torch.testing.assert_close(end, start + 2.0)
