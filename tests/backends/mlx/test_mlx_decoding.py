"""T3 on MLX against PyTorch: 64 tokens of each family, one read for eight of them, and KV caches in place."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

mx = pytest.importorskip("mlx.core")

from backends.conformance import FAMILIES, GREEDY, MLX, Case, Driver, decoding_of, open_decoder, source_of  # noqa: E402
from tiny_torch import seeded  # noqa: E402

from nightingale.backends.base import ModelSource, Setup  # noqa: E402
from nightingale.backends.mlx import arrays  # noqa: E402
from nightingale.backends.mlx.decoder import STEPS_AHEAD, MlxDecoder  # noqa: E402
from nightingale.backends.mlx.t3 import static_decode  # noqa: E402
from nightingale.backends.mlx.t3.t3_network import MlxT3  # noqa: E402
from nightingale.backends.mlx.t3.transformer import Precision  # noqa: E402
from nightingale.backends.mlx.weight_files import t3_weights  # noqa: E402
from nightingale.backends.profiles import PROFILES  # noqa: E402
from nightingale.backends.torch.runner import embed_prompt, generate  # noqa: E402
from nightingale.backends.torch.weights import in_memory  # noqa: E402
from nightingale.decoding.host_decoder import DecodeRow  # noqa: E402
from nightingale.models.chatterbox.t3.config import ENGLISH, NANO, T3Config  # noqa: E402
from nightingale.models.chatterbox.t3.model import T3  # noqa: E402
from nightingale_lab.bench.mlx_logits import logit_error  # noqa: E402

FLOAT32 = Case("mlx", "float32")
TOKENS = 64
LOGIT_ERROR = {"float16": 0.004, "bfloat16": 0.03, "int8": 0.02, "int4": 0.15}
"""Largest RMS error of wren's logits over their spread."""


def longer(source: ModelSource) -> ModelSource:
    """Return the tiny model with more tokens to sample."""
    return source.with_info(
        replace(source.info, defaults=replace(source.info.defaults, max_new_tokens=TOKENS))
    )


def decoder_of(source: ModelSource, precision: str = "float32", *, batched: bool = True) -> MlxDecoder:
    profile = replace(PROFILES["balanced"], slots=4, batched=batched)
    decoder = FLOAT32.object.open_decoder(source, Setup(profile=profile, machine=MLX, precision=precision))
    assert isinstance(decoder, MlxDecoder)
    return decoder


def t3_of(source: ModelSource) -> T3:
    t3: T3 = source.loaded("t3")
    return t3


@pytest.mark.parametrize("sampling", [GREEDY, {}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("family", FAMILIES)
def test_64_tokens_equal_the_reference(family: str, sampling: dict[str, Any]) -> None:
    source = longer(source_of(family))
    expected = list(generate(t3_of(source), decoding_of(source, 4, **sampling)))
    assert Driver(source, decoder_of(source), **sampling).run([4])[4] == expected
    assert len(expected) == TOKENS


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-4), ("bfloat16", 0.15), ("int8", 0.15)])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_logits_are_near_the_reference(family: str, precision: str, bound: float) -> None:
    source = source_of(family)
    prompt, limit = decoding_of(source, 1).prompt, source.info.defaults.max_new_tokens
    t3 = MlxT3(source.info.preset.t3, t3_weights(source), Precision.named(precision, gpu=False))
    x = t3.embed_prompt(prompt, max_new_tokens=limit)
    logits, _ = t3.read(x, mx.array(x.shape[1] - 1), t3.backbone.new_caches(len(x), 256))
    with torch.inference_mode():
        own = embed_prompt(t3_of(source), prompt, max_new_tokens=limit)
        cache = t3_of(source).new_kv_cache(rows=len(own), capacity=own.shape[1])
        expected = t3_of(source).next_logits(own, cache).numpy()
    assert np.abs(np.array(logits) - expected).max() < bound * expected.std()


@pytest.mark.slow
@pytest.mark.parametrize("config", [ENGLISH, NANO], ids=["english", "nano"])
def test_layers_of_full_size_give_the_reference_tokens(config: T3Config) -> None:
    small = source_of("english" if config is ENGLISH else "nano")
    full = replace(config, backbone=replace(config.backbone, layers=2), speaker_width=16, text_vocab=300)
    with torch.random.fork_rng(devices=[]):
        t3 = seeded(T3(full), torch.Generator().manual_seed(3))
    flow, vocoder = small.loaded("s3gen")
    info = replace(small.info, preset=replace(small.info.preset, t3=full))
    source = longer(in_memory(info, t3=t3, flow=flow, vocoder=vocoder))
    expected = list(generate(t3, decoding_of(source, 2, **GREEDY)))
    assert Driver(source, decoder_of(source), **GREEDY).run([2])[2] == expected
    assert len(set(expected)) > 8


@pytest.mark.parametrize("family", ["multilingual", "turbo"])
def test_alone_each_utterance_is_computed_by_itself(family: str) -> None:
    source = source_of(family)
    together = Driver(source, decoder_of(source, batched=False)).run([1, 2, 3])
    for seed, tokens in together.items():
        assert Driver(source, decoder_of(source, batched=False)).run([seed])[seed] == tokens


@pytest.mark.parametrize("batched", [True, False])
def test_an_utterance_that_waits_loses_no_token(batched: bool) -> None:
    """The engine may leave an utterance out of a step while others need their tokens sooner."""
    source = source_of("turbo")
    decoder = decoder_of(source, batched=batched)
    expected = Driver(source, decoder).run([1, 2])
    driver = Driver(source, decoder)
    driver.start(1)
    driver.start(2)
    for _ in range(4):
        first = driver.running[:1]
        (_, decoding) = first[0]
        tokens = decoder.decode([DecodeRow(0, decoding, 0)])[0]
        assert not isinstance(tokens, Exception)
        driver._append(1, decoding, tokens)
    driver.stop(1)
    while driver.running:
        driver.step()
    assert driver.tokens == expected


def test_an_unguided_request_beside_a_guided_one_changes_neither() -> None:
    source = source_of("english")
    decoder = decoder_of(source)
    alone = {
        weight: Driver(source, decoder, cfg_weight=weight).run([seed])[seed]
        for seed, weight in ((1, 0.0), (2, 0.5))
    }
    guided, free = Driver(source, decoder, cfg_weight=0.5), Driver(source, decoder, cfg_weight=0.0)
    guided.start(2)
    free.running = guided.running
    free.start(1)
    guided.tokens |= free.tokens
    while guided.running:
        guided.step()
    assert {0.5: guided.tokens[2], 0.0: guided.tokens[1]} == alone


def test_a_token_is_evaluated_once_and_eight_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = longer(source_of("english"))
    counts: Counter[str] = Counter()

    def counting(name: str, function: Any) -> Any:
        def count(*args: Any) -> Any:
            counts[name] += 1
            return function(*args)

        return count

    driver = Driver(source, decoder_of(source), **GREEDY)
    driver.start(1)
    monkeypatch.setattr(mx, "async_eval", counting("evaluated", mx.async_eval))
    monkeypatch.setattr(mx, "eval", counting("waited", mx.eval))
    monkeypatch.setattr(static_decode, "read", counting("read", arrays.read))
    while driver.running:
        driver.step()
    assert len(driver.tokens[1]) == TOKENS
    # One block more than there are tokens was launched before the last one was read.
    assert counts == {"evaluated": TOKENS + STEPS_AHEAD, "read": TOKENS // STEPS_AHEAD}
    assert STEPS_AHEAD >= 8


def test_steps_write_into_the_kv_cache_in_place() -> None:
    """A copy of one layer's keys would take more than all that a step needs besides."""
    source = source_of("wren")
    t3 = MlxT3(source.info.preset.t3, t3_weights(source), Precision(mx.float32))
    caches = t3.backbone.new_caches(1, 16_384)
    keys = caches[0][0].nbytes
    mx.eval(caches)
    slots, token = [caches], mx.array([5])
    del caches
    for position in range(3):
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        logits, slots = t3.step(token, token, mx.array([position]), slots, 256)
        mx.eval(logits, slots)
        assert mx.get_peak_memory() - before < keys / 2


@pytest.mark.thorough
@pytest.mark.parametrize("precision", LOGIT_ERROR)
def test_lower_precisions_of_trained_weights_stay_near_float32(precision: str) -> None:
    assert 1e-5 < logit_error(precision) < LOGIT_ERROR[precision]


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("family", ["multilingual", "nano"])
def test_quantized_layers_decode_every_family(family: str, precision: str) -> None:
    source = source_of(family)
    decoder = decoder_of(source, precision)
    tokens = Driver(source, decoder, **GREEDY).run([1, 2])
    assert tokens == Driver(source, decoder, **GREEDY).run([1, 2])
    layer = decoder._loops[0].t3.backbone.layers[0]
    assert (layer.qkv.bits, layer.down.bits) == ((8, 8) if precision == "int8" else (4, 6))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("few", "many"), [(5, 25), pytest.param(20, 200, marks=pytest.mark.slow)], ids=["25", "200"]
)
def test_memory_stays_flat_over_utterances(few: int, many: int) -> None:
    source, decoder = source_of("wren"), decoder_of(source_of("wren"))
    driver = Driver(source, decoder)
    for seed in range(few):
        driver.run([seed])
    kept = mx.get_active_memory() + mx.get_cache_memory()
    for seed in range(few, many):
        driver.run([seed])
    assert mx.get_active_memory() + mx.get_cache_memory() <= 1.05 * kept


@pytest.mark.slow
@pytest.mark.parametrize("family", ["wren", "english", "turbo"])
def test_compiled_functions_give_the_same_tokens(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are compiled on a GPU only; here MLX compiles them with a C++ compiler."""
    expected = Driver(*open_decoder(FLOAT32, family)).run([1, 2, 3])
    monkeypatch.setattr(arrays, "compiles", lambda: True)
    assert Driver(*open_decoder(FLOAT32, family)).run([1, 2, 3]) == expected
