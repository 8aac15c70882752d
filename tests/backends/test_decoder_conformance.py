"""Every decoder obeys the contract: reference tokens, batches, slots, cancellation, faults and capacity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from backends.conformance import (
    CPU,
    DECODERS,
    FAMILIES,
    GREEDY,
    SLOTS,
    Case,
    Driver,
    as_parameters,
    decoding_of,
    open_decoder,
    source_of,
)

from nightingale.backends.base import Setup
from nightingale.backends.profiles import PROFILES
from nightingale.backends.torch.runner import embed_prompt, generate
from nightingale.backends.torch.weights import in_memory
from nightingale.decoding.host_decoder import HostDecoder
from nightingale.errors import CapacityError, TextError
from nightingale.models.chatterbox.t3.model import T3

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 is slow

SEEDS = (1, 2, 3)
LOGIT_ERROR = {"float32": 1e-4, "bfloat16": 0.15, "int8": 0.15}
"""Largest error of the first logits over their standard deviation, by precision."""


def cases(*, networks: bool = False, float32: bool = False, logits: bool = False) -> Any:
    """Parametrize over the decoders that have networks, run in float32, or return logits."""
    chosen = [
        case
        for case in DECODERS
        if not (networks and case.backend == "noise")
        and not (float32 and not case.exact)
        and not (logits and case.backend in ("cuda", "mlx"))
    ]
    return pytest.mark.parametrize("case", as_parameters(chosen))


families = pytest.mark.parametrize("family", FAMILIES)


def reference(family: str, seed: int, **sampling: float) -> list[int]:
    source = source_of(family)
    t3: T3 = source.shared("t3", lambda: None)
    return list(generate(t3, decoding_of(source, seed, **sampling)))


@families
@cases(networks=True, float32=True)
def test_greedy_tokens_equal_the_reference(case: Case, family: str) -> None:
    source, decoder = open_decoder(case, family)
    tokens = Driver(source, decoder, **GREEDY).run(SEEDS)
    assert tokens == {seed: reference(family, seed, **GREEDY) for seed in SEEDS}
    assert len({tuple(row) for row in tokens.values()}) > 1, "other texts must give other tokens"


@families
@cases(networks=True, float32=True)
def test_a_seed_gives_the_reference_tokens_when_sampling(case: Case, family: str) -> None:
    source, decoder = open_decoder(case, family)
    assert Driver(source, decoder).run(SEEDS) == {seed: reference(family, seed) for seed in SEEDS}


@families
@cases(networks=True, logits=True)
def test_the_first_logits_are_near_the_reference(case: Case, family: str) -> None:
    source, decoder = open_decoder(case, family)
    assert isinstance(decoder, HostDecoder)
    t3: T3 = source_of(family).shared("t3", lambda: None)
    decoding = decoding_of(source, 1)
    logits = decoder.runner.prefill(0, decoding.prompt, max_tokens=decoding.budget)
    with torch.inference_mode():
        x = embed_prompt(t3, decoding.prompt, max_new_tokens=source.info.defaults.max_new_tokens)
        cache = t3.new_kv_cache(rows=len(x), capacity=x.shape[1])
        expected = t3.next_logits(x, cache).numpy()
    assert logits.shape == expected.shape
    assert np.abs(logits - expected).max() < LOGIT_ERROR[case.precision] * expected.std()


@families
@cases()
def test_alone_equals_batched(case: Case, family: str) -> None:
    source, decoder = open_decoder(case, family)
    batch = Driver(source, decoder).run(SEEDS)
    for seed in SEEDS:
        source, decoder = open_decoder(case, family)
        assert Driver(source, decoder).run([seed])[seed] == batch[seed]


@cases()
def test_the_same_seed_gives_the_same_tokens_again(case: Case) -> None:
    source, decoder = open_decoder(case, "multilingual")
    driver = Driver(source, decoder)
    assert driver.run(SEEDS) == driver.run(SEEDS)
    assert driver.run([5]) != driver.run([6])


@cases()
def test_cancelled_and_moved_slots_disturb_no_other(case: Case) -> None:
    source, decoder = open_decoder(case, "turbo")
    expected = Driver(source, decoder).run(range(SLOTS))
    driver = Driver(source, decoder)
    for seed in range(SLOTS):
        driver.start(seed)
    driver.step()
    driver.step()
    driver.stop(1)
    driver.step()
    driver.stop(0)
    driver.start(9)
    while driver.running:
        driver.step()
    assert {seed: driver.tokens[seed] for seed in (2, 3)} == {seed: expected[seed] for seed in (2, 3)}
    assert driver.tokens[9] == Driver(source, decoder).run([9])[9]


@cases(networks=True)
def test_logits_that_are_not_numbers_end_one_utterance(case: Case) -> None:
    healthy, decoder = open_decoder(case, "turbo")
    t3: T3 = source_of("turbo").shared("t3", lambda: None)
    flow, hift = source_of("turbo").shared("s3gen", lambda: None)
    with torch.random.fork_rng(devices=[]):
        broken = T3(t3.config).eval().requires_grad_(False)
    broken.load_state_dict(t3.state_dict())
    broken.speech_emb.weight.data[:] = float("nan")
    source = in_memory(healthy.info, t3=broken, flow=flow, vocoder=hift)
    setup = Setup(profile=replace(PROFILES["balanced"], slots=SLOTS), machine=CPU, precision=case.precision)
    driver = Driver(source, case.object.open_decoder(source, setup))
    driver.errors.clear()
    try:
        driver.start(1)
        while driver.running:
            driver.step()
    except ArithmeticError as error:
        driver.errors[1] = error
    assert "not finite" in str(driver.errors[1])
    assert len(Driver(healthy, decoder).run([1])[1]) > 0


@cases(networks=True)
def test_a_prompt_that_does_not_fit_is_refused(case: Case) -> None:
    source, decoder = open_decoder(case, "multilingual")
    decoding = decoding_of(source, 1)
    decoding.prompt = replace(decoding.prompt, text_ids=[5] * 500)
    with pytest.raises((CapacityError, TextError)):
        decoder.prefill(0, decoding)
    assert len(Driver(source, decoder).run([1])[1]) > 0
