"""With guesses and without, five tokens are drawn equally often: two samples, each of seeds of its own.

That every seed says the same either way is tested elsewhere, and implies it; this would also see a mistake
that both ways of that comparison share.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from backends.conftest import CONFIGS
from engine.test_speculate import FREE
from parity.tiny import fill, gaussian

from nightingale.backends.torch.drafts import ExitDraft
from nightingale.backends.torch.runner import PlainRunner
from nightingale.decoding.decoder import HostDecoder, Speaking
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.speculative import SpeculativeDecoder
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS

FIRST, FEW, SLOTS, GUESSES = 5, 1000, 50, 3
BINS = 40
UNLIKELY = 80.0
"""Chi-square with 40 degrees of freedom exceeds it once in 5,000 times; seeds are fixed."""
Said = Counter[tuple[int, ...]]


@pytest.fixture(scope="module")
def t3() -> T3:
    return fill(T3(CONFIGS["wren"]))


def drawn(
    t3: T3, *, first_seed: int, guessing: bool, utterances: int, temperature: float = 0.1
) -> tuple[Said, int]:
    """How often each beginning was said; and how many guesses were right."""
    defaults = replace(MODEL_DEFAULTS["wren"], max_new_tokens=FIRST)
    sampling = replace(defaults.sampling, temperature=temperature, cfg_weight=0.0)
    pool = {"slots": SLOTS, "rows_per_slot": 1, "capacity": 60, "batched": True, "spare": GUESSES}
    runner = PlainRunner(t3, **pool)  # type: ignore[arg-type]
    draws = HostDecoder(runner)
    if guessing:
        draws = SpeculativeDecoder(runner, ExitDraft(runner, layers=1), costs=FREE, after=1, longest=GUESSES)
    prompt = gaussian((1, 6, t3.config.backbone.width), 5)
    counts: Said = Counter()
    accepted = 0
    for begun in range(first_seed, first_seed + utterances, SLOTS):
        decodings = [
            Decoding(t3, defaults=defaults, sampling=sampling, text_ids=9, seed=seed)
            for seed in range(begun, begun + SLOTS)
        ]
        said = [draws.begin(n, decoding, prompt) for n, decoding in enumerate(decodings)]
        for tokens, decoding in zip(said, decodings, strict=True):
            decoding.note(tokens[-1])
        while open_ := [n for n, d in enumerate(decodings) if not d.finished]:
            speaking = [Speaking(slot=n, decoding=decodings[n], last_token=said[n][-1]) for n in open_]
            for n, got in zip(open_, draws.step(speaking), strict=True):
                assert isinstance(got, list), got
                for token in got:
                    if not decodings[n].finished:
                        said[n].append(token)
                        decodings[n].note(token)
        accepted += sum(d.tally.accepted for d in decodings)
        counts.update(tuple(tokens[:FIRST]) for tokens in said)
    return counts, accepted


def difference(one: Said, other: Said) -> float:
    """Chi-square of two samples of one size: of the most frequent beginnings, and of the rest together."""
    frequent = [said for said, _ in (one + other).most_common(BINS)]
    pairs = [(one[said], other[said]) for said in frequent]
    rest = [sum(counts.values()) - sum(counts[said] for said in frequent) for counts in (one, other)]
    return sum((a - b) ** 2 / (a + b) for a, b in [*pairs, (rest[0], rest[1])])


@pytest.mark.parametrize("utterances", [4000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_guesses_do_not_change_how_often_an_id_is_drawn(t3: T3, utterances: int) -> None:
    plain, none = drawn(t3, first_seed=0, guessing=False, utterances=utterances)
    guessed, accepted = drawn(t3, first_seed=10_000_000, guessing=True, utterances=utterances)
    assert none == 0
    assert accepted > utterances // 10
    assert sum(plain.values()) == sum(guessed.values()) == utterances
    assert difference(plain, guessed) < UNLIKELY


def test_a_fifth_more_temperature_would_be_seen(t3: T3) -> None:
    cool, warm = (
        drawn(t3, first_seed=seed, guessing=False, utterances=FEW, temperature=temperature)[0]
        for seed, temperature in ((300_000, 0.1), (400_000, 0.12))
    )
    assert difference(cool, warm) > UNLIKELY
