"""Speculative decoding gives the tokens of plain decoding: for every draft and family, in batches, after faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from backends.conftest import voice_for
from parity.tiny import TINY_GPT2, TINY_LLAMA, fill, gaussian
from tiny_torch import t3_of

from nightingale import TTS
from nightingale.backends import BACKENDS
from nightingale.backends.base import Decoder, Setup
from nightingale.backends.profiles import PROFILES, Profile
from nightingale.backends.selection import find_machine, select
from nightingale.backends.torch.draft_heads import TorchDraftHead
from nightingale.backends.torch.runner import TorchRunner, to_logits
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.decoding.drafts import Draft, DraftRequest, HiddenStateDraft, LookupDraft, ModelDraft
from nightingale.decoding.host_decoder import DecodeRow, HostDecoder
from nightingale.decoding.kv_budget import KVBudget
from nightingale.decoding.sampling import Logits
from nightingale.decoding.speculative import RETRY_AFTER, Costs, DraftLength, SpeculativeDecoder
from nightingale.engine.load import Model
from nightingale.engine.rendering.utterance import Utterance
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS

FREE = Costs(several=1.0, token=0.0)
"""Drafting costs nothing, so as many tokens as possible are drafted."""
CONFIGS: dict[str, T3Config] = {"multilingual": TINY_LLAMA, "turbo": TINY_GPT2}
BUDGET, PROMPT, LONGEST = 24, 6, 4
POOL = {
    "slots": 4,
    "rows_per_slot": 2,
    "capacity": PROMPT + 4 + BUDGET,
    "spare": LONGEST,
    "max_new_tokens": BUDGET,
}
DRAFTS = ["lookup", "same", "other", "head"]


@pytest.fixture(scope="module")
def nets() -> dict[str, T3]:
    return {name: fill(T3(config)) for name, config in CONFIGS.items()}


def embedded(t3: T3, prompt: Prompt) -> torch.Tensor:
    """Return other embeddings for each seed, which the prompt carries as its text, of another length."""
    seed = prompt.text_ids[0]
    return gaussian((prompt.rows, PROMPT + seed % 4, t3.config.backbone.width), seed)


class EmbeddedRunner(TorchRunner):
    """A runner whose prompts are random embeddings instead of text and a voice."""

    def prefill(self, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        return to_logits(self.prefill_embeddings(slot, embedded(self.t3, prompt), max_tokens=max_tokens))


def budget_for(t3: T3) -> KVBudget:
    return KVBudget.dense(t3.config, MODEL_DEFAULTS["english"], itemsize=4)


def random_head(t3: T3) -> DraftHead:
    """Return a head that was never trained; its tokens are valid ones."""
    return fill(DraftHead(t3.config.backbone.width, blocks=1, inner=32))


def draft_of(kind: str, name: str, nets: dict[str, T3], runner: TorchRunner) -> Draft:
    """Return a lookup, a draft head, the target itself, which is always right, or the other family."""
    if kind == "lookup":
        return LookupDraft()
    if kind == "head":
        return HiddenStateDraft(runner, TorchDraftHead(runner.t3, random_head(runner.t3)))
    t3 = nets[name if kind == "same" else next(other for other in nets if other != name)]
    own = EmbeddedRunner(t3, **POOL, batched=runner.batched)  # type: ignore[arg-type]

    def prompt(decoding: Decoding) -> Prompt:
        return replace(decoding.prompt, guided=decoding.prompt.guided and kind == "same")

    return ModelDraft(own, prompt)


class Batch:
    """Drive a decoder as the worker does: prefill, decode, release, move."""

    def __init__(self, t3: T3, name: str, decoder: Decoder, **sampling: Any) -> None:
        self.t3, self.decoder = t3, decoder
        self.defaults = replace(MODEL_DEFAULTS[name], max_new_tokens=BUDGET)
        self.sampling = replace(self.defaults.sampling, **sampling)
        self.rows = 2 if self.sampling.cfg_weight > 0 else 1
        self.said: dict[int, list[int]] = {}
        self.running: list[tuple[int, Decoding]] = []
        self.drafted = self.accepted = 0

    def begin(self, seed: int) -> None:
        decoding = self._decoding(seed)
        slot = len(self.running)
        self.running.append((seed, decoding))
        self._note(seed, decoding, self.decoder.prefill(slot, decoding))

    def restart(self, seed: int, new_seed: int) -> None:
        slot = [s for s, _ in self.running].index(seed)
        decoding = self._decoding(new_seed)
        self.running[slot] = (new_seed, decoding)
        self._note(new_seed, decoding, self.decoder.prefill(slot, decoding))

    def _decoding(self, seed: int) -> Decoding:
        prompt = Prompt(
            text="",
            text_ids=[seed] * 9,
            voice=voice_for(self.t3.config),
            exaggeration=0.5,
            guided=self.rows == 2,
        )
        vocab = self.t3.config.speech_vocab
        return Decoding(prompt, vocab=vocab, defaults=self.defaults, sampling=self.sampling, seed=seed)

    def step(self) -> None:
        rows = [
            DecodeRow(slot, decoding, self.said[seed][-1])
            for slot, (seed, decoding) in enumerate(self.running)
        ]
        for (seed, decoding), drawn in zip(list(self.running), self.decoder.decode(rows), strict=True):
            assert not isinstance(drawn, Exception), drawn
            self._note(seed, decoding, drawn)
        for seed in [seed for seed, decoding in self.running if decoding.finished]:
            self.leave(seed)

    def _note(self, seed: int, decoding: Decoding, tokens: list[int]) -> None:
        for token in tokens:
            if not decoding.finished:
                self.said.setdefault(seed, []).append(token)
                decoding.append(token)

    def leave(self, seed: int) -> None:
        slot, last = [s for s, _ in self.running].index(seed), len(self.running) - 1
        stats = self.running[slot][1].stats
        self.drafted, self.accepted = self.drafted + stats.drafted, self.accepted + stats.accepted
        self.decoder.release(slot)
        if slot != last:
            self.decoder.move(last, slot)
            self.running[slot] = self.running[last]
        self.running.pop()

    def run(self) -> Batch:
        """Start one by one, cancel one, restart one, and decode the rest to the end."""
        self.begin(0)
        for _ in range(2):
            self.step()
        self.begin(1)
        self.begin(2)
        self.step()
        self.begin(3)
        self.step()
        if any(seed == 1 for seed, _ in self.running):
            self.restart(1, 11)
        self.step()
        if any(seed == 0 for seed, _ in self.running):
            self.leave(0)
        while self.running:
            self.step()
        return self


def plain(t3: T3, batched: bool) -> HostDecoder:
    return HostDecoder(EmbeddedRunner(t3, **POOL, batched=batched), budget_for(t3))  # type: ignore[arg-type]


def speculative(kind: str, name: str, nets: dict[str, T3], *, batched: bool) -> SpeculativeDecoder:
    runner = EmbeddedRunner(nets[name], **POOL, batched=batched)  # type: ignore[arg-type]
    draft = draft_of(kind, name, nets, runner)
    return SpeculativeDecoder(runner, draft, budget_for(runner.t3), costs=FREE, after=1, longest=LONGEST)


def check_same(batch: Batch, expected: Batch) -> None:
    """Compare up to the shorter length: an interrupted request may have come further or less far."""
    for seed in (2, 3, 11):
        assert batch.said[seed] == expected.said[seed], f"seed {seed}"
    for seed in (0, 1):
        both = min(len(batch.said[seed]), len(expected.said[seed]))
        assert batch.said[seed][:both] == expected.said[seed][:both], f"seed {seed}"


@pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_speculative_decoding_says_what_plain_decoding_says(
    name: str, kind: str, temperature: float, batched: bool, nets: dict[str, T3]
) -> None:
    expected = Batch(nets[name], name, plain(nets[name], False), temperature=temperature).run()
    decoder = speculative(kind, name, nets, batched=batched)
    batch = Batch(nets[name], name, decoder, temperature=temperature).run()
    check_same(batch, expected)
    assert batch.accepted <= batch.drafted
    if kind != "lookup":
        assert batch.drafted > 0
    if kind == "same":
        assert batch.accepted > 0.8 * batch.drafted, "the target drafts for itself"


class Broken(Draft):
    """A draft that fails for odd slots and proposes nonsense for the others."""

    def __init__(self) -> None:
        self.asked = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        self.asked += 1
        if any(request.slot % 2 for request in requests):
            raise ArithmeticError("this draft knows nobody in an odd slot")
        return [[5] * request.count for request in requests]


def test_a_draft_that_fails_costs_no_utterance_a_token(nets: dict[str, T3]) -> None:
    name, draft = "multilingual", Broken()
    runner = EmbeddedRunner(nets[name], **POOL, batched=True)  # type: ignore[arg-type]
    decoder = SpeculativeDecoder(runner, draft, budget_for(runner.t3), costs=FREE, after=1, longest=LONGEST)
    check_same(Batch(nets[name], name, decoder).run(), Batch(nets[name], name, plain(nets[name], True)).run())
    assert draft.asked > 5


def test_no_draft_is_used_before_the_first_block_has_its_tokens(nets: dict[str, T3]) -> None:
    draft = Broken()
    runner = EmbeddedRunner(nets["turbo"], **POOL, batched=False)  # type: ignore[arg-type]
    decoder = SpeculativeDecoder(runner, draft, budget_for(runner.t3), costs=FREE, after=5)
    batch = Batch(nets["turbo"], "turbo", decoder)
    batch.begin(0)
    for _ in range(4):
        assert draft.asked == 0
        batch.step()
    assert len(batch.said[0]) == 5
    batch.step()
    assert draft.asked == 1


def test_the_pace_follows_what_was_accepted() -> None:
    length = DraftLength(Costs(several=1.0, token=0.05, draft=0.1))
    first = length.next(1)
    for _ in range(20):
        length.update(4, 4)
    assert length.next(1) > first > 0
    for _ in range(60):
        length.update(1, 0)
    assert [length.next(1) for _ in range(RETRY_AFTER)] == [0] * (RETRY_AFTER - 1) + [1]


def test_a_draft_that_could_never_pay_is_never_asked() -> None:
    length = DraftLength(Costs(several=9.0, token=0.5, draft=0.3))
    assert {length.next(1) for _ in range(3 * RETRY_AFTER)} == {0}


def test_drafts_are_shorter_in_a_batch_where_each_token_costs() -> None:
    costs = Costs(several=1.0, token=0.2)
    assert DraftLength(costs).next(1) > DraftLength(costs).next(8)


def test_runners_that_verify_row_by_row_draft_nothing_in_a_batch() -> None:
    costs = Costs(several=1.2, token=0.1, draft=0.1, sequential=True)
    assert DraftLength(costs).next(1) > 0
    assert {DraftLength(costs).next(size) for size in (2, 3, 8)} == {0}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """The tokens that each request sampled in its last attempt, by its seed."""
    kept: dict[int, list[int]] = {}
    accept, begin = Utterance.accept, Utterance._start_attempt

    def accepted(self: Utterance, token: int) -> None:
        accept(self, token)
        kept[self.request.seed].append(token)

    def begun(self: Utterance) -> None:
        begin(self)
        kept[self.request.seed] = []

    monkeypatch.setattr(Utterance, "accept", accepted)
    monkeypatch.setattr(Utterance, "_start_attempt", begun)
    monkeypatch.setattr(Costs, "gain", FREE.gain)
    return kept


@pytest.fixture
def engine(tiny_model: Model) -> Callable[[str], TTS]:
    model = tiny_model.with_defaults(max_new_tokens=22, guarded=True)
    return lambda draft: TTS.over(model, replace(PROFILES["balanced"], slots=3, draft=draft))


def test_the_engine_says_the_same_when_requests_leave_and_begin_anew(
    engine: Callable[[str], TTS],
    head_file: Path,
    drawn: dict[int, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heed = Utterance._apply

    def once(self: Utterance, guard: Any) -> None:
        heed(self, guard)
        if self.request.seed == 1 and self._attempt == 0 and self.decoding.appended == 14:
            self.must_restart = True

    monkeypatch.setattr(Utterance, "_apply", once)
    runs, metrics = [], []
    for draft in ("", str(head_file), "lookup", "noise"):
        with engine(draft) as tts:
            gone = tts.stream("Somebody who will not stay to the end of this.", seed=9)
            streams = [
                tts.stream(text, seed=i) for i, text in enumerate(["Hello there.", "Again.", "Three."])
            ]
            next(gone)
            gone.close()  # type: ignore[attr-defined]
            for stream in streams:
                list(stream)
            drawn.pop(9)
            runs.append(dict(drawn))
            metrics.append(tts.say("Hello there.", seed=0).metrics)
    assert runs[1:] == runs[:1] * 3
    assert metrics[0].drafted == metrics[0].accepted == 0
    assert metrics[1].drafted > 0
    assert metrics[3].accepted > 0.8 * metrics[3].drafted > 0, "the model drafts for itself"


def opened(model: Model, draft: str) -> Decoder:
    profile: Profile = replace(PROFILES["exact"], draft=draft)
    plan = select(BACKENDS, model.info, find_machine(BACKENDS, "cpu"), profile)
    assert plan.decoder.backend.name == "torch"
    return plan.decoder.backend.open_decoder(model.source, plan.decoder.setup)


def test_a_draft_head_that_does_not_exist_is_refused(tiny_model: Model) -> None:
    with pytest.raises(ConfigError, match="no such draft"):
        opened(tiny_model, "head")


@pytest.mark.parametrize(("backend", "precision"), [("onnx", "int8"), ("cuda", "bfloat16")])
def test_a_draft_is_refused_where_it_would_not_be_exact(
    tiny_model: Model, backend: str, precision: str
) -> None:
    """ONNX Runtime's int8 has no exact drafts, and CUDA graphs have draft heads only: others run elsewhere."""
    profile = replace(PROFILES["fast"], draft="lookup")
    machine = find_machine(BACKENDS, "cpu")
    (found,) = [one for one in BACKENDS if one.name == backend]
    setup = Setup(profile=profile, machine=replace(machine, instructions="sm_90"), precision=precision)
    reason = found.unsupported_reason("decoder", tiny_model.info, setup)
    assert reason is not None
    assert "draft" in reason


def test_an_odd_token_costs_as_much_as_two_and_rows_in_turn_as_many() -> None:
    costs = Costs(several=1.2, token=0.1, by_twos=True)
    assert [round(costs.of_pass(tokens), 3) for tokens in (1, 2, 3, 4)] == [1.0, 1.3, 1.5, 1.5]
    both = costs.row_by_row(2)
    assert [round(both.of_pass(tokens), 3) for tokens in (1, 2, 3, 4)] == [1.0, 2.6, 3.0, 3.0]
    assert DraftLength(both).next(1) == 0, "nothing is drafted for a guided utterance"


def test_weights_with_fewer_layers_are_a_draft(tiny_model: Model, tmp_path: Any) -> None:
    from safetensors.torch import save_file

    config = t3_of(tiny_model).config
    tensors = T3(replace(config, backbone=replace(config.backbone, layers=1))).state_dict()
    save_file(
        {name: value.half().contiguous() for name, value in tensors.items()}, tmp_path / "d.safetensors"
    )
    decoder = opened(tiny_model, str(tmp_path / "d.safetensors"))
    assert isinstance(decoder, SpeculativeDecoder)
    assert isinstance(decoder._draft, ModelDraft)
    assert decoder._draft._runner.kv_bytes > 0  # type: ignore[attr-defined]
    assert decoder._draft._runner.t3.config.backbone.layers == 1  # type: ignore[attr-defined]
