"""T3 by ONNX Runtime in float32: logits, several tokens at once, rewinding, and the draft head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor

pytest.importorskip("onnxruntime")
from backends.onnx.runners import draft_weights, runner_over
from backends.small_t3 import GPT2, LLAMA, MAX_ERROR, prompt, relative_error, small_t3
from backends.torch.test_speculative import FREE, Batch, budget_for, check_same, embedded, random_head

from nightingale.backends.onnx import capabilities
from nightingale.backends.onnx.draft_graph import OnnxDraftChain, OnnxDraftHead
from nightingale.backends.onnx.runner import OnnxRunner
from nightingale.backends.onnx.torch_model import GRAPH_FILE, OnnxFormat, TorchEmbeddings
from nightingale.backends.shared.capability_checks import weight_count
from nightingale.backends.shared.packed_t3 import digest_of_tensors, pack
from nightingale.backends.torch.draft_heads import TorchDraftHead
from nightingale.backends.torch.runner import TorchRunner
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.drafts import HiddenStateDraft
from nightingale.decoding.host_decoder import HostDecoder
from nightingale.decoding.philox import uniform_rows
from nightingale.decoding.runner import StepInput, VerifyInput
from nightingale.decoding.sampling import Logits, draw, process_logits
from nightingale.decoding.speculative import SpeculativeDecoder
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, TAPS, LlamaConfig
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.types import Sampling

POOL: dict[str, Any] = {
    "slots": 4, "rows_per_slot": 2, "capacity": 40, "batched": False, "spare": 8, "max_new_tokens": 24
}  # fmt: skip
TOKENS = [7, 250, 3, 3, 99]


@dataclass(frozen=True)
class Pair:
    t3: T3
    onnx: OnnxRunner
    torch: TorchRunner

    def prefill(self, slot: int, x: Tensor) -> tuple[Logits, Tensor]:
        max_tokens = POOL["max_new_tokens"]
        expected = self.torch.prefill_embeddings(slot, x, max_tokens=max_tokens)
        return self.onnx.prefill_embeddings(slot, x.numpy()), expected


class EmbeddedOnnxRunner(OnnxRunner):
    """A runner whose prompts are random embeddings instead of text and a voice."""

    def prefill(self, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        del max_tokens
        assert isinstance(self.embeddings, TorchEmbeddings)
        return self.prefill_embeddings(slot, embedded(self.embeddings._t3, prompt).numpy())


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def t3(request: pytest.FixtureRequest) -> T3:
    return small_t3(LLAMA if request.param == "llama" else GPT2)


@pytest.fixture
def pair(t3: T3) -> Pair:
    in_torch = TorchRunner(t3, **POOL)
    in_torch.capture_hidden_states()
    return Pair(t3, runner_over(t3, **POOL), in_torch)


def embeddings_of(t3: T3) -> TorchEmbeddings:
    return TorchEmbeddings(t3, max_new_tokens=POOL["max_new_tokens"])


def chain_of(t3: T3, head: DraftHead) -> OnnxDraftChain:
    return OnnxDraftChain(t3.config, draft_weights(t3, head), embeddings_of(t3), threads=1, longest=4)


def check_close(got: ArrayLike, expected: ArrayLike) -> None:
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 2])
def test_logits_match_torch(pair: Pair, rows: int) -> None:
    check_close(*pair.prefill(1, prompt(rows, 9, 1)))
    for position, token in enumerate(TOKENS, 1):
        step = StepInput(slot=1, token=token, position=position)
        check_close(pair.onnx.step([step])[0], pair.torch.step([step])[0])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_several_tokens_at_once_give_the_same_logits_and_can_be_rewound(
    pair: Pair, rows: int, count: int
) -> None:
    pair.prefill(0, prompt(rows, 9, 2))
    pair.onnx.verify([VerifyInput(slot=0, tokens=[11] * count, position=1)])
    pair.onnx.rewind(0, count)
    (logits,) = pair.onnx.verify([VerifyInput(slot=0, tokens=TOKENS[:count], position=1)])
    assert logits.shape[:2] == (rows, count)
    for at, token in enumerate(TOKENS[:count]):
        (one,) = pair.torch.step([StepInput(slot=0, token=token, position=at + 1)])
        check_close(logits[:, at], one)
        check_close(pair.onnx.hidden_states(0, at + 1), pair.torch.hidden_states(0, at + 1))


def test_hidden_states_move_with_their_utterance(pair: Pair) -> None:
    pair.prefill(1, prompt(2, 7, 3))
    for runner in (pair.onnx, pair.torch):
        runner.move(1, 0)
    expected = pair.torch.hidden_states(0, 0)
    check_close(pair.onnx.hidden_states(0, 0), expected)
    last = torch.from_numpy(expected[:, : pair.t3.config.backbone.width])
    check_close(pair.t3.speech_head(last), pair.onnx.prefill_embeddings(1, prompt(2, 7, 3).numpy()))


def test_int8_too_gives_logits_of_every_drafted_token(t3: T3, tmp_path: Path) -> None:
    weights = t3.state_dict()
    source = digest_of_tensors(weights)
    packed = pack(t3.config, weights, OnnxFormat(), cache_dir=tmp_path, source=source)
    runner = runner_over(t3, packed / GRAPH_FILE, **POOL)
    runner.prefill_embeddings(0, prompt(2, 9, 4).numpy())
    alone = [
        runner.step([StepInput(slot=0, token=token, position=position)])[0]
        for position, token in enumerate(TOKENS, 1)
    ]
    runner.rewind(0, len(TOKENS))
    (logits,) = runner.verify([VerifyInput(slot=0, tokens=TOKENS, position=1)])
    # Sums in another order may round another way in the next layer.
    assert relative_error(logits, np.stack(alone, axis=1)) < MAX_ERROR / 2


def test_an_int8_draft_is_close_to_torch(t3: T3) -> None:
    width = t3.config.backbone.width
    with torch.random.fork_rng():
        torch.manual_seed(5)
        head = DraftHead(width, blocks=2, inner=64).requires_grad_(False)
        hidden = torch.randn(2, (1 + TAPS) * width).numpy()
    ours = OnnxDraftHead(t3.config, draft_weights(t3, head), embeddings_of(t3), threads=1)
    in_torch = TorchDraftHead(t3, head)
    state = in_torch.start(hidden)
    check_close(ours.start(hidden), state)
    got, expected = ours.step(np.asarray(state), 17, 3), in_torch.step(state, 17, 3)
    for mine, its in zip(got, expected, strict=True):
        assert 0 < relative_error(mine, its) < 0.03


def test_large_models_are_not_copied() -> None:
    assert "would hold a second copy" in str(capabilities.float32_unsupported_reason(MULTILINGUAL))
    t3 = small_t3(LLAMA)
    counted = sum(p.numel() for n, p in t3.named_parameters() if n.startswith("tfmr.l") and p.dim() > 1)
    assert weight_count(LLAMA) == counted + t3.speech_head.weight.numel()
    small = replace(MULTILINGUAL, backbone=LlamaConfig(layers=1, width=64, heads=1))
    assert capabilities.float32_unsupported_reason(small) is None


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
def test_speculative_decoding_gives_the_tokens_of_plain_decoding(t3: T3, temperature: float) -> None:
    name = "multilingual" if isinstance(t3.config.backbone, LlamaConfig) else "turbo"
    runner, reference = (runner_over(t3, kind=EmbeddedOnnxRunner, **POOL) for _ in range(2))
    draft = HiddenStateDraft(runner, chain_of(t3, random_head(t3)))
    speculative = SpeculativeDecoder(runner, draft, budget_for(t3), costs=FREE, after=1, longest=4)
    got = Batch(t3, name, speculative, temperature=temperature).run()
    plain = HostDecoder(reference, budget_for(t3))
    check_same(got, Batch(t3, name, plain, temperature=temperature).run())
    assert got.drafted > 0


def test_a_chain_samples_what_single_drafts_would(t3: T3) -> None:
    """Each token is sampled inside the graph, and its embedding is fed to the next draft."""
    head, vocab = random_head(t3), t3.config.speech_vocab
    ours = chain_of(t3, head)
    # So low a temperature that few tokens are candidates, as with a trained T3 at its own temperature.
    sampling = replace(Sampling(), temperature=0.05, min_p=0.05, top_p=1.0, repetition_penalty=1.0)
    rng = torch.Generator().manual_seed(3)
    same = []
    for first in range(40):
        hidden = torch.randn(1, (1 + TAPS) * t3.config.backbone.width, generator=rng).numpy()
        state, token = head.start(torch.from_numpy(hidden)), first
        for number, drafted in enumerate(
            ours.chain(hidden, first, uniform_rows(first, 0, 3, vocab), sampling)
        ):
            # Not TorchDraftHead.step: a chain embeds tokens without positions.
            state = head(state, t3.speech_emb(torch.tensor([token])))
            logits = t3.speech_head(state)[0].detach().numpy()
            processed = process_logits(logits, np.zeros(vocab, np.bool_), "chatterbox", sampling)
            token = draw(processed, first, number)
            same.append(token == drafted)
            if not same[-1]:
                break
    assert sum(same) > 0.85 * len(same) > 50
