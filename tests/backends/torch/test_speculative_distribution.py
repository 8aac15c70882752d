"""With and without drafts, five tokens are sampled equally often: two samples, each of seeds of its own.

That every seed gives the same tokens either way is tested elsewhere and implies it; this would also see a
mistake that both sides of that comparison share.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from backends.conftest import CONFIGS, voice_for
from backends.torch.test_speculative import FREE, EmbeddedRunner, budget_for
from parity.tiny import fill

from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.decoding.drafts import ModelDraft
from nightingale.decoding.host_decoder import DecodeRow, HostDecoder
from nightingale.decoding.speculative import SpeculativeDecoder
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS

FIRST, FEW, SLOTS, DRAFT_TOKENS = 5, 1000, 50, 3
BINS = 40
UNLIKELY = 80.0
"""Chi-square with 40 degrees of freedom exceeds it once in 5,000 times; seeds are fixed."""
Said = Counter[tuple[int, ...]]


@pytest.fixture(scope="module")
def t3() -> T3:
    return fill(T3(CONFIGS["wren"]))


def first_layer(t3: T3) -> T3:
    """Return a T3 of the first layer of another, which is often right."""
    small = T3(replace(t3.config, backbone=replace(t3.config.backbone, layers=1)))
    small.load_state_dict({name: t3.state_dict()[name] for name in small.state_dict()})
    return small


def drawn(
    t3: T3, *, first_seed: int, with_draft: bool, utterances: int, temperature: float = 0.1
) -> tuple[Said, int]:
    """Return the counts of each prefix, and the number of accepted draft tokens."""
    defaults = replace(MODEL_DEFAULTS["wren"], max_new_tokens=FIRST)
    sampling = replace(defaults.sampling, temperature=temperature, cfg_weight=0.0)
    pool = {
        "slots": SLOTS,
        "rows_per_slot": 1,
        "capacity": 60,
        "batched": True,
        "spare": DRAFT_TOKENS,
        "max_new_tokens": FIRST,
    }
    runner = EmbeddedRunner(t3, **pool)  # type: ignore[arg-type]
    decoder, budget = HostDecoder(runner, budget_for(t3)), budget_for(t3)
    if with_draft:
        small = EmbeddedRunner(first_layer(t3), **pool)  # type: ignore[arg-type]
        draft = ModelDraft(small, lambda decoding: decoding.prompt)
        decoder = SpeculativeDecoder(runner, draft, budget, costs=FREE, after=1, longest=DRAFT_TOKENS)
    prompt = Prompt(text="", text_ids=[5] * 9, voice=voice_for(t3.config), exaggeration=0.5, guided=False)
    counts: Said = Counter()
    accepted = 0
    for begun in range(first_seed, first_seed + utterances, SLOTS):
        decodings = [
            Decoding(prompt, vocab=t3.config.speech_vocab, defaults=defaults, sampling=sampling, seed=seed)
            for seed in range(begun, begun + SLOTS)
        ]
        said = [decoder.prefill(n, decoding) for n, decoding in enumerate(decodings)]
        for tokens, decoding in zip(said, decodings, strict=True):
            decoding.append(tokens[-1])
        while open_ := [n for n, d in enumerate(decodings) if not d.finished]:
            rows = [DecodeRow(n, decodings[n], said[n][-1]) for n in open_]
            for n, got in zip(open_, decoder.decode(rows), strict=True):
                assert isinstance(got, list), got
                for token in got:
                    if not decodings[n].finished:
                        said[n].append(token)
                        decodings[n].append(token)
        accepted += sum(d.stats.accepted for d in decodings)
        counts.update(tuple(tokens[:FIRST]) for tokens in said)
    return counts, accepted


def difference(one: Said, other: Said) -> float:
    """Chi-square of two samples of one size: of the most frequent beginnings, and of the rest together."""
    frequent = [said for said, _ in (one + other).most_common(BINS)]
    pairs = [(one[said], other[said]) for said in frequent]
    rest = [sum(counts.values()) - sum(counts[said] for said in frequent) for counts in (one, other)]
    return sum((a - b) ** 2 / (a + b) for a, b in [*pairs, (rest[0], rest[1])])


@pytest.mark.parametrize("utterances", [FEW, pytest.param(20_000, marks=pytest.mark.slow)])
def test_drafts_do_not_change_the_distribution_of_tokens(t3: T3, utterances: int) -> None:
    plain, none = drawn(t3, first_seed=0, with_draft=False, utterances=utterances)
    drafted, accepted = drawn(t3, first_seed=10_000_000, with_draft=True, utterances=utterances)
    assert none == 0
    assert accepted > utterances // 10
    assert sum(plain.values()) == sum(drafted.values()) == utterances
    assert difference(plain, drafted) < UNLIKELY


def test_a_fifth_more_temperature_would_be_seen(t3: T3) -> None:
    cool, warm = (
        drawn(t3, first_seed=seed, with_draft=False, utterances=FEW, temperature=temperature)[0]
        for seed, temperature in ((300_000, 0.1), (400_000, 0.12))
    )
    assert difference(cool, warm) > UNLIKELY
