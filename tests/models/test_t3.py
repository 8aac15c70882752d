"""T3: the layout of its prompt, parity with upstream, and KV caches that change no result."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from parity import tiny
from torch import Tensor

from nightingale.errors import MemoryFull
from nightingale.models.chatterbox.t3.config import ENGLISH, START_SPEECH, TURBO, Gpt2Config, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.rope import inverse_frequencies
from nightingale_lab.no_kv_cache import NoKVCache

CONFIGS = {"llama": tiny.TINY_LLAMA, "gpt2": tiny.TINY_GPT2}


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def nets() -> dict[str, T3]:
    return {name: tiny.fill(T3(config)) for name, config in CONFIGS.items()}


def prompt(net: T3, *, guided: bool, exaggeration: float = tiny.EXAGGERATION) -> Tensor:
    return net.prompt(
        torch.tensor([net.config.frame_text(tiny.TEXT)]),
        speaker=tiny.scatter((1, 256), 1),
        prompt_ids=tiny.ids(net.config.prompt_tokens, 2),
        exaggeration=torch.tensor([exaggeration]),
        guided=guided,
    )


def greedy(net: T3, tokens: int) -> list[int]:
    guided = net.config.perceiver
    x = prompt(net, guided=guided)
    kv_caches = net.new_kv_cache(rows=len(x), capacity=x.shape[1] + tokens)
    ids: list[int] = []
    for position in range(tokens):
        logits = net.next_logits(x, kv_caches)
        mixed = logits[0] + tiny.CFG_WEIGHT * (logits[0] - logits[1]) if guided else logits[0]
        ids.append(int(mixed.argmax()))
        x = net.embed_speech(torch.full((len(x), 1), ids[-1]), position + 1)
    return ids


def tokens_after(x: Tensor, net: T3, count: int) -> Tensor:
    """Continue an embedded prompt of one row with `count` speech tokens."""
    return torch.cat([x, net.embed_speech(tiny.ids(count, 11), 1)], dim=1)


def test_logits_after_the_prompt_equal_upstreams(nets: dict[str, T3], kind: str) -> None:
    net = nets[kind]
    x = prompt(net, guided=kind == "llama")
    logits = net.next_logits(x, net.new_kv_cache(rows=len(x), capacity=x.shape[1]))
    golden = tiny.goldens()[f"{kind}.prefill_scores"]
    torch.testing.assert_close(logits[:, tiny.SEEN_LOGITS], golden, rtol=1e-4, atol=1e-4)


def test_greedy_tokens_equal_upstreams(nets: dict[str, T3], kind: str) -> None:
    assert greedy(nets[kind], tiny.GREEDY_TOKENS) == tiny.goldens()[f"{kind}.greedy_ids"].tolist()


def test_conditioning_equals_upstreams(nets: dict[str, T3], kind: str) -> None:
    golden = tiny.goldens()[f"{kind}.conditioning"]
    ours = prompt(nets[kind], guided=False)[:, : golden.shape[1]]
    torch.testing.assert_close(ours, golden, rtol=1e-4, atol=1e-5)


def test_the_prompt_ends_with_two_equal_starts(nets: dict[str, T3]) -> None:
    net = nets["llama"]
    x = prompt(net, guided=True)
    start = net.embed_speech(torch.tensor([[START_SPEECH]]), 0)[0, 0]
    assert x.shape[1] == 34 + len(tiny.TEXT) + 2 + 2
    for row in x:
        assert torch.equal(row[-1], start)
        assert torch.equal(row[-2], start)
        assert not torch.equal(row[-3], start)


def test_turbos_prompt_ends_with_one_start(nets: dict[str, T3]) -> None:
    net = nets["gpt2"]
    x = prompt(net, guided=False)
    start = net.speech_emb.weight[START_SPEECH]
    assert x.shape[1] == 1 + net.config.prompt_tokens + len(tiny.TEXT) + 1
    assert torch.equal(x[0, -1], start)
    assert not torch.equal(x[0, -2], start)


def test_turbos_prompt_has_no_positions(nets: dict[str, T3]) -> None:
    net = nets["gpt2"]
    embedded = prompt(net, guided=False)[:, 1 : 1 + net.config.prompt_tokens]
    assert torch.equal(embedded, net.speech_emb(tiny.ids(net.config.prompt_tokens, 2)))


def test_the_perceiver_uses_its_block_twice(nets: dict[str, T3]) -> None:
    perceiver = nets["llama"].cond_enc.perceiver
    context = tiny.scatter((1, 20, 64), 12)
    once = perceiver.attn(perceiver.pre_attention_query, context)
    torch.testing.assert_close(perceiver(context), perceiver.attn(once, once))
    golden = tiny.goldens()["llama.conditioning"][:, 1:33]
    embedded = nets["llama"].speech_emb(tiny.ids(20, 2)) + nets["llama"].speech_pos_emb(20)
    torch.testing.assert_close(perceiver(embedded), golden, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(perceiver.attn(perceiver.pre_attention_query, embedded), golden, atol=1e-2)


def test_the_unconditional_row_has_positions_and_no_text(nets: dict[str, T3]) -> None:
    net = nets["llama"]
    conditional, unconditional = prompt(net, guided=True)
    text = slice(34, 34 + len(tiny.TEXT) + 2)
    assert torch.equal(unconditional[text], net.text_pos_emb(len(tiny.TEXT) + 2))
    assert torch.equal(conditional[:34], unconditional[:34])
    assert not torch.equal(conditional[text], unconditional[text])


def test_exaggeration_changes_one_vector_only(nets: dict[str, T3]) -> None:
    calm, wild = (prompt(nets["llama"], guided=False, exaggeration=e) for e in (0.2, 1.5))
    changed = (calm != wild).any(dim=-1)[0].nonzero().flatten().tolist()
    assert changed == [33]


def test_text_is_framed_by_start_and_stop_where_the_model_has_them() -> None:
    assert tiny.TINY_LLAMA.frame_text([7, 8]) == [255, 7, 8, 0]
    assert tiny.TINY_GPT2.frame_text([7, 8]) == [7, 8]


def test_the_config_knows_the_length_of_the_prompt(nets: dict[str, T3], kind: str) -> None:
    assert CONFIGS[kind].prompt_length(len(tiny.TEXT)) == prompt(nets[kind], guided=False).shape[1]


def test_a_single_row_equals_the_conditional_row_of_two(nets: dict[str, T3]) -> None:
    net = nets["llama"]
    one, two = prompt(net, guided=False), prompt(net, guided=True)
    assert torch.equal(one[0], two[0])
    size = one.shape[1] + 3
    alone, pair = net.new_kv_cache(rows=1, capacity=size), net.new_kv_cache(rows=2, capacity=size)
    torch.testing.assert_close(net.next_logits(one, alone)[0], net.next_logits(two, pair)[0])
    step = net.embed_speech(tiny.ids(1, 13), 1)
    torch.testing.assert_close(
        net.next_logits(step, alone)[0], net.next_logits(step.expand(2, -1, -1), pair)[0]
    )


def test_token_by_token_equals_all_at_once(nets: dict[str, T3], kind: str) -> None:
    net = nets[kind]
    start = prompt(net, guided=False)
    whole = tokens_after(start, net, 9)
    kv_caches = net.new_kv_cache(rows=1, capacity=whole.shape[1])
    parts = [net(start, kv_caches)]
    parts += [net(whole[:, [at]], kv_caches) for at in range(start.shape[1], whole.shape[1])]
    at_once = net(whole, [NoKVCache()] * net.config.backbone.layers)
    torch.testing.assert_close(torch.cat(parts, dim=1), at_once, rtol=1e-4, atol=1e-4)


def test_several_tokens_at_a_time_equal_all_at_once(nets: dict[str, T3], kind: str) -> None:
    net = nets[kind]
    whole = tokens_after(prompt(net, guided=False), net, 9)
    kv_caches = net.new_kv_cache(rows=1, capacity=whole.shape[1])
    cuts = [0, 5, 6, whole.shape[1] - 4, whole.shape[1]]
    parts = [net(whole[:, a:b], kv_caches) for a, b in pairwise(cuts)]
    at_once = net(whole, [NoKVCache()] * net.config.backbone.layers)
    torch.testing.assert_close(torch.cat(parts, dim=1), at_once, rtol=1e-4, atol=1e-4)


def test_the_cache_is_full_one_past_its_capacity(nets: dict[str, T3], kind: str) -> None:
    net = nets[kind]
    x = prompt(net, guided=False)
    kv_caches = net.new_kv_cache(rows=1, capacity=x.shape[1] + 1)
    step = net.embed_speech(tiny.ids(1, 16), 1)
    net(x, kv_caches)
    net(step, kv_caches)
    with pytest.raises(MemoryFull, match=f"{x.shape[1] + 2} positions.*at most {x.shape[1] + 1}"):
        net(step, kv_caches)


@pytest.mark.parametrize("config", [ENGLISH, TURBO, tiny.TINY_LLAMA], ids=["english", "turbo", "tiny"])
def test_any_size_is_built_by_config(config: T3Config) -> None:
    with torch.device("meta"):
        net = T3(config)
    assert net.speech_head.weight.shape == (config.speech_vocab, config.backbone.width)
    assert (net.speech_head.bias is not None) == config.head_bias


def test_nano_differs_from_turbo_in_its_backbone_only() -> None:
    with torch.device("meta"):
        net = T3(replace(TURBO, backbone=Gpt2Config(layers=12, width=768, heads=12)))
    assert sum(p.numel() for p in net.parameters()) == pytest.approx(140e6, rel=0.01)


def test_low_rotary_frequencies_are_scaled_as_in_llama_3() -> None:
    inverse = inverse_frequencies(64, theta=500_000.0, scaling=True)
    plain = inverse_frequencies(64, theta=500_000.0, scaling=False)
    assert torch.equal(inverse[:15], plain[:15])
    torch.testing.assert_close(
        inverse[15:18], torch.tensor([1.37189e-3, 5.24846e-4, 1.78508e-4]), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(inverse[18:], plain[18:] / 8)


def test_rotary_frequencies_stay_exact_in_bfloat16() -> None:
    net = T3(CONFIGS["llama"])
    exact = net.tfmr.inverse.clone()
    net.to(torch.bfloat16)
    assert net.speech_head.weight.dtype == torch.bfloat16
    assert torch.equal(net.tfmr.inverse, exact)
    assert net.to(torch.float64).tfmr.inverse.dtype == torch.float64
