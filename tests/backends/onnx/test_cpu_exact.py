"""T3 by ONNX Runtime in float32: the plain scores, several tokens at once, taken back, and guessed from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("onnxruntime")
from backends.onnx.test_cpu_runner import GPT2, LLAMA, NEAR, off, prompt, small
from engine.test_speculate import FREE, Crowd, check_same, random_head

from nightingale.backends.onnx import capabilities as able
from nightingale.backends.onnx.draft_head import OnnxDraftHead
from nightingale.backends.shared.packed_t3 import digest_of_tensors, pack
from nightingale.backends.onnx.runner import CpuRunner, exact_graph
from nightingale.backends.torch.drafts import TorchDraftHead, HiddenStateDraft
from nightingale.decoding.decoder import HostDecoder
from nightingale.decoding.random import RaceTape
from nightingale.backends.torch.runner import PlainRunner, Trial, Turn
from nightingale.decoding.sampling import compose_sampler, draw
from nightingale.decoding.speculative import SpeculativeDecoder
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, LlamaConfig
from nightingale.models.chatterbox.t3.draft_head import TAPS, DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.types import Sampling

POOL = {"slots": 2, "rows_per_slot": 2, "capacity": 40, "batched": False, "spare": 8}
CROWD = {"slots": 4, "rows_per_slot": 2, "capacity": 40, "batched": False, "spare": 8}
SAID = [7, 250, 3, 3, 99]


@dataclass(frozen=True)
class Pair:
    t3: T3
    onnx: CpuRunner
    torch: PlainRunner


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def t3(request: pytest.FixtureRequest) -> T3:
    return small(LLAMA if request.param == "llama" else GPT2)


@pytest.fixture
def pair(t3: T3) -> Pair:
    graph, plain = exact_graph(t3), PlainRunner(t3, **POOL)  # type: ignore[arg-type]
    plain.listen()
    return Pair(t3, CpuRunner(t3, graph, **POOL, threads=1), plain)  # type: ignore[arg-type]


def near(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 2])
def test_scores_are_the_plain_ones(pair: Pair, rows: int) -> None:
    x = prompt(rows, 9, 1)
    near(pair.onnx.begin(1, x), pair.torch.begin(1, x))
    for position, token in enumerate(SAID, 1):
        turn = Turn(slot=1, token=token, position=position)
        near(pair.onnx.step([turn])[0], pair.torch.step([turn])[0])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_several_tokens_at_once_score_as_one_by_one_and_are_taken_back(
    pair: Pair, rows: int, count: int
) -> None:
    x = prompt(rows, 9, 2)
    for runner in (pair.onnx, pair.torch):
        runner.begin(0, x)
    wrong = Trial(slot=0, tokens=[11] * count, position=1)
    pair.onnx.verify([wrong])
    pair.onnx.rewind(0, count)
    (scores,) = pair.onnx.verify([Trial(slot=0, tokens=SAID[:count], position=1)])
    assert scores.shape[:2] == (rows, count)
    for at, token in enumerate(SAID[:count]):
        (one,) = pair.torch.step([Turn(slot=0, token=token, position=at + 1)])
        near(scores[:, at], one)
        near(pair.onnx.thought(0, at + 1), pair.torch.thought(0, at + 1))


def test_thoughts_are_those_of_the_utterance_that_moved(pair: Pair) -> None:
    for runner in (pair.onnx, pair.torch):
        runner.begin(1, prompt(2, 7, 3))
        runner.move(1, 0)
    near(pair.onnx.thought(0, 0), pair.torch.thought(0, 0))
    thought = pair.torch.thought(0, 0)[:, : pair.t3.config.backbone.width]
    near(pair.t3.speech_head(thought), pair.onnx.begin(1, prompt(2, 7, 3)))


def test_a_packed_t3_too_scores_every_token_of_a_guess(t3: T3, tmp_path: Path) -> None:
    weights = t3.state_dict()
    packed = pack(t3.config, weights, home=tmp_path, source=digest_of_tensors(weights))
    runner = CpuRunner(t3, packed.graph, **POOL, threads=1)  # type: ignore[arg-type]
    x, alone = prompt(2, 9, 4), []
    runner.begin(0, x)
    for position, token in enumerate(SAID, 1):
        alone.append(runner.step([Turn(slot=0, token=token, position=position)])[0])
    runner.rewind(0, len(SAID))
    (scores,) = runner.verify([Trial(slot=0, tokens=SAID, position=1)])
    # A sum that ends another way can tip a rounding in the next layer.
    assert off(scores, torch.stack(alone, dim=1)) < NEAR / 2


def test_a_guess_in_eight_bits_is_near_its_twin(t3: T3) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        head = DraftHead(t3.config.backbone.width, blocks=2, inner=64).requires_grad_(False)
        thought, said = torch.randn(2, 3, t3.config.backbone.width).unbind(1)[:2]
    ours, plain = OnnxDraftHead(t3, head, threads=1, longest=4), TorchDraftHead(t3, head)
    for got, wanted in zip(ours(thought, said), plain(thought, said), strict=True):
        error = (got - wanted).square().mean().sqrt() / wanted.std()
        assert 0 < error < 0.03


def test_large_weights_are_not_held_twice() -> None:
    assert "would be held twice" in str(able.exact_refusal(MULTILINGUAL))
    t3 = small(LLAMA)
    counted = sum(p.numel() for n, p in t3.named_parameters() if n.startswith("tfmr.l") and p.dim() > 1)
    assert able.weights_of(LLAMA) == counted + t3.speech_head.weight.numel()
    assert (
        able.exact_refusal(replace(MULTILINGUAL, backbone=LlamaConfig(layers=1, width=64, heads=1))) is None
    )


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
def test_guessing_says_what_plain_decoding_says(t3: T3, temperature: float) -> None:
    name = "multilingual" if isinstance(t3.config.backbone, LlamaConfig) else "turbo"
    pool = {**CROWD, "threads": 1}
    runner = CpuRunner(t3, exact_graph(t3), **pool)  # type: ignore[arg-type]
    head = random_head(t3)
    draft = HiddenStateDraft(runner, t3, OnnxDraftHead(t3, head, threads=1, longest=4))
    draws = SpeculativeDecoder(runner, draft, costs=FREE, after=1, longest=4)
    heard = Crowd(t3, name, draws, temperature=temperature).run()
    plain = HostDecoder(CpuRunner(t3, exact_graph(t3), **pool))  # type: ignore[arg-type]
    check_same(heard, Crowd(t3, name, plain, temperature=temperature).run())
    assert heard.drafted > 0


def test_a_chain_draws_what_single_guesses_would(t3: T3) -> None:
    """Each is drawn inside of the graph, and its embedding fed to the next."""
    head, vocab = random_head(t3), t3.config.speech_vocab
    ours, plain = OnnxDraftHead(t3, head, threads=1, longest=4), TorchDraftHead(t3, head)
    # So cold that few ids are in the race, as with a trained T3 at its own temperature.
    sampling = replace(Sampling(), temperature=0.05, min_p=0.05, top_p=1.0, repetition_penalty=1.0)
    sampler, rng = compose_sampler("chatterbox", sampling), torch.Generator().manual_seed(3)
    same = []
    for token in range(40):
        thoughts = torch.randn(1, (1 + TAPS) * t3.config.backbone.width, generator=rng)
        tape = RaceTape(rng, width=vocab)
        chances = [tape.read(number) for number in range(3)]
        thought, said = plain.begin(thoughts), token
        for guessed, chance in zip(ours.chain(thoughts, token, chances, sampling), chances, strict=True):
            thought, scores = plain(thought, t3.speech_emb(torch.tensor([said])))
            said = draw(sampler(scores[0].detach().numpy(), np.zeros(vocab, np.bool_)), chance)
            same.append(said == guessed)
            if not same[-1]:
                break
    assert sum(same) > 0.85 * len(same) > 50
