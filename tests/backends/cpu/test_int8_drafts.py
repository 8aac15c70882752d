"""Drafts for the int8 decoder: passes over several tokens give the bits of single steps, and tokens stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("llvmlite")
from backends.small_t3 import GPT2, LLAMA, WIDTH, prompt, relative_error, small_t3
from backends.torch.test_speculative import FREE, Batch, budget_for, check_same, embedded
from safetensors.torch import save_file

from nightingale.backends.base import Machine, ModelInfo, ModelSource, Setup
from nightingale.backends.cpu import opening
from nightingale.backends.cpu.int8_draft_head import Int8DraftHead
from nightingale.backends.cpu.int8_layout import TiledFormat
from nightingale.backends.cpu.runner import Int8Runner
from nightingale.backends.profiles import PROFILES
from nightingale.backends.shared.packed_t3 import pack
from nightingale.backends.torch.draft_heads import TorchDraftHead
from nightingale.backends.torch.runner import TorchRunner
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.drafts import HiddenStateDraft
from nightingale.decoding.host_decoder import HostDecoder
from nightingale.decoding.runner import StepInput, VerifyInput
from nightingale.decoding.sampling import Logits
from nightingale.decoding.speculative import SpeculativeDecoder
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.t3.config import TAPS, T3Config
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS

POOL: dict[str, Any] = {"slots": 4, "rows_per_slot": 2, "capacity": 60, "batched": True, "max_new_tokens": 24}
TOKENS = [7, 250, 3, 3, 99]
CONFIGS = {"multilingual": LLAMA, "turbo": GPT2}


class EmbeddedInt8Runner(Int8Runner):
    """A runner whose prompts are random embeddings instead of text and a voice."""

    def prefill(self, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        del max_tokens
        return self.prefill_embeddings(slot, embedded(self._t3, prompt).numpy())


def random_head(seed: int = 5) -> DraftHead:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return DraftHead(WIDTH, blocks=2, inner=256).requires_grad_(False)


def runner_over(
    t3: T3, folder: Path, bits: int = 8, draft: Int8DraftHead | None = None
) -> EmbeddedInt8Runner:
    packed = pack(t3.config, t3.state_dict(), TiledFormat(bits), cache_dir=folder, source="test")
    return EmbeddedInt8Runner(t3, packed, **POOL, threads=2, draft=draft)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
@pytest.mark.parametrize("rows", [1, 2])
def test_a_pass_over_several_tokens_gives_the_bits_of_single_steps(
    config: T3Config, rows: int, bits: int, tmp_path: Path
) -> None:
    runner = runner_over(small_t3(config), tmp_path, bits)
    runner.capture_hidden_states()
    runner.prefill_embeddings(1, prompt(rows, 30, 1).numpy())
    logits, hidden = [], []
    for position, token in enumerate(TOKENS, 1):
        logits += runner.step([StepInput(1, token, position)])
        hidden.append(runner.hidden_states(1, position))
    runner.rewind(1, len(TOKENS))
    runner.verify([VerifyInput(1, [11] * 4, 1)])
    runner.rewind(1, 4)
    runner.prefill_embeddings(0, prompt(2, 9, 2).numpy())
    for count in range(1, len(TOKENS) + 1):
        both = [VerifyInput(0, [5] * count, 1), VerifyInput(1, TOKENS[:count], 1)]
        _, passed = runner.verify(both)
        np.testing.assert_array_equal(passed, np.stack(logits[:count], axis=1))
        for draw in range(1, count + 1):
            np.testing.assert_array_equal(runner.hidden_states(1, draw), hidden[draw - 1])
        for slot in (0, 1):
            runner.rewind(slot, count)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_hidden_states_are_those_of_torch(config: T3Config, tmp_path: Path) -> None:
    t3 = small_t3(config)
    ours, theirs = runner_over(t3, tmp_path), TorchRunner(t3, **POOL)
    x = prompt(2, 20, 3)
    for runner in (ours, theirs):
        runner.capture_hidden_states()
    ours.prefill_embeddings(2, x.numpy())
    theirs.prefill_embeddings(2, x, max_tokens=24)
    for runner in (ours, theirs):
        runner.verify([VerifyInput(2, TOKENS, 1)])
        runner.move(2, 0)
    for draw in range(1, len(TOKENS) + 1):
        got, expected = (runner.hidden_states(0, draw) for runner in (ours, theirs))
        assert got.shape == (2, (1 + TAPS) * WIDTH)
        for part in range(1 + TAPS):
            own = slice(part * WIDTH, (part + 1) * WIDTH)
            assert relative_error(got[:, own], expected[:, own]) < 0.03


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_a_quantized_draft_head_is_close_to_torch(config: T3Config, tmp_path: Path) -> None:
    t3, head = small_t3(config), random_head()
    ours, theirs = Int8DraftHead(t3, head, bits=8), TorchDraftHead(t3, head)
    runner_over(t3, tmp_path, draft=ours)
    rng = torch.Generator().manual_seed(1)
    for rows in (1, 2):
        hidden = torch.randn(rows, (1 + TAPS) * WIDTH, generator=rng).numpy()
        state, expected = ours.start(hidden), theirs.start(hidden)
        assert 0 < relative_error(state, expected) < 0.02
        for position, token in ((3, 17), (4, 900)):
            (state, logits), (expected, wanted) = (
                ours.step(state, token, position),
                theirs.step(expected, token, position),
            )
            assert relative_error(state, expected) < 0.05
            assert relative_error(logits, wanted) < 0.05


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_those_of_plain_decoding(name: str, bits: int, temperature: float, tmp_path: Path) -> None:
    t3 = small_t3(CONFIGS[name])
    head = Int8DraftHead(t3, random_head(), bits=bits)
    runner, reference = runner_over(t3, tmp_path, bits, head), runner_over(t3, tmp_path, bits)
    draft = HiddenStateDraft(runner, head)
    speculative = SpeculativeDecoder(runner, draft, budget_for(t3), costs=FREE, after=1, longest=3)
    got = Batch(t3, name, speculative, temperature=temperature).run()
    plain = HostDecoder(reference, budget_for(t3))
    check_same(got, Batch(t3, name, plain, temperature=temperature).run())
    assert got.drafted > 0


@pytest.mark.parametrize(("inner", "kind"), [(256, Int8DraftHead), (32, TorchDraftHead)])
def test_a_profile_opens_its_draft_head(inner: int, kind: type, tmp_path: Path) -> None:
    """A head that the kernels cannot run is run in float32."""
    preset = replace(PRESETS["multilingual"], t3=LLAMA)
    info = ModelInfo(name="multilingual", preset=preset, defaults=MODEL_DEFAULTS["multilingual"])
    source = ModelSource(info, {}, loaded={"t3": small_t3(LLAMA)})
    path = tmp_path / "head.safetensors"
    save_file(DraftHead(WIDTH, blocks=1, inner=inner).state_dict(), path)
    profile = replace(PROFILES["balanced"], slots=1, draft=str(path))
    setup = Setup(
        profile=profile, machine=Machine(device="cpu", name="cpu", instructions=""), precision="int8"
    )
    decoder = opening.open_decoder(source, setup)
    assert isinstance(decoder, SpeculativeDecoder)
    assert isinstance(decoder._draft, HiddenStateDraft)
    assert isinstance(decoder._draft._head, kind)
    save_file(DraftHead(2 * WIDTH, blocks=1, inner=inner).state_dict(), path)
    with pytest.raises(ConfigError, match="made for another model"):
        opening.open_decoder(source, setup)
