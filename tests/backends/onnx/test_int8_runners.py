"""T3 in int8 by both CPU runners: close to float32, the same in any batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backends.int8_reference import quantize_t3
from backends.small_t3 import GPT2, LLAMA, MAX_ERROR, WIDTH, prompt, relative_error, small_t3
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.cpu import capabilities
from nightingale.backends.shared.packed_t3 import digest_of_tensors, pack, without_backbone
from nightingale.decoding.runner import StepInput
from nightingale.errors import MemoryFull
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_cache import KVCache

pytest.importorskip("onnxruntime")
pytest.importorskip("llvmlite")
from backends.onnx.runners import runner_over

from nightingale.backends.cpu.int8_layout import TiledFormat
from nightingale.backends.cpu.runner import Int8Runner
from nightingale.backends.onnx.runner import OnnxRunner
from nightingale.backends.onnx.torch_model import GRAPH_FILE, OnnxFormat

Runner = OnnxRunner | Int8Runner


@dataclass(frozen=True)
class Made:
    t3: T3
    packed: Path
    runtime: str


RUNTIMES = ("onnxruntime", "native")


@pytest.fixture(scope="module", params=[f"{n} {runtime}" for n in ("llama", "gpt2") for runtime in RUNTIMES])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    name, runtime = request.param.split()
    if runtime == "native" and (reason := capabilities._t3_reason(name == "llama")) is not None:
        pytest.skip(reason)
    t3 = small_t3(LLAMA if name == "llama" else GPT2)
    weights = t3.state_dict()
    weight_format = TiledFormat() if runtime == "native" else OnnxFormat()
    folder, digest = tmp_path_factory.mktemp("packed"), digest_of_tensors(weights)
    packed = pack(t3.config, weights, weight_format, cache_dir=folder, source=digest)
    return Made(t3, packed, runtime)


def runner_of(
    made: Made, *, batched: bool = True, slots: int = 3, rows: int = 2, capacity: int = 40
) -> Runner:
    light = without_backbone(made.t3.config, made.t3.state_dict(), source=Path("t3"))
    pool = {"slots": slots, "rows_per_slot": rows, "capacity": capacity, "batched": batched}
    pool |= {"max_new_tokens": 24, "threads": 1}
    if made.runtime == "native":
        return Int8Runner(light, made.packed, **pool)
    return runner_over(light, made.packed / GRAPH_FILE, **pool)


def reference_logits(t3: T3, x: Tensor, tokens: list[int]) -> list[Tensor]:
    """Return the logits after a prompt and after each token, by torch in float32."""
    kv_cache: list[KVCache] = t3.new_kv_cache(rows=len(x), capacity=60)
    with torch.inference_mode():
        out = [t3.next_logits(x, kv_cache)]
        for position, token in enumerate(tokens, 1):
            out.append(t3.next_logits(t3.embed_speech(torch.full((len(x), 1), token), position), kv_cache))
    return out


def test_logits_are_close_to_float32_from_the_prompt_to_the_last_token(made: Made) -> None:
    runner, x, tokens = runner_of(made), prompt(2, 9, 1), [7, 250, 3, 3, 99]
    exact = reference_logits(made.t3, x, tokens)
    errors = [relative_error(runner.prefill_embeddings(0, x), exact[0])]
    for position, token in enumerate(tokens, 1):
        errors.append(relative_error(runner.step([StepInput(0, token, position)])[0], exact[position]))
    assert 0 < max(errors) < MAX_ERROR
    shifted = reference_logits(made.t3, x[:, 1:], tokens)
    assert relative_error(shifted[-1], exact[-1]) > 5 * MAX_ERROR, (
        "a missing position must not pass for rounding"
    )


def test_the_error_is_that_of_the_reference_with_the_same_quantization(made: Made) -> None:
    """The errors are equal in size, not token by token: another order of a sum may round another way."""
    x, tokens = prompt(2, 12, 2), [5, 17, 290, 41]
    exact = reference_logits(made.t3, x, tokens)
    reference = small_t3(made.t3.config)
    quantize_t3(reference)
    rounded = reference_logits(reference, x, tokens)
    runner = runner_of(made)
    ours = [runner.prefill_embeddings(0, x)]
    ours += [runner.step([StepInput(0, token, at)])[0] for at, token in enumerate(tokens, 1)]
    mine = torch.tensor([relative_error(a, b) for a, b in zip(ours, exact, strict=True)]).mean()
    its = torch.tensor([relative_error(a, b) for a, b in zip(rounded, exact, strict=True)]).mean()
    assert 0.7 < mine / its < 1.4
    between = torch.tensor([relative_error(a, b) for a, b in zip(ours, rounded, strict=True)]).mean()
    assert between < its, "closer to the reference than that is to float32"


def test_a_batch_gives_the_same_logits_as_its_utterances_alone(made: Made) -> None:
    together, alone = runner_of(made), runner_of(made, batched=False)
    for slot, (rows, time) in enumerate([(2, 5), (1, 11), (2, 8)]):
        x = prompt(rows, time, slot)
        torch.testing.assert_close(
            together.prefill_embeddings(slot, x), alone.prefill_embeddings(slot, x), atol=1e-5, rtol=0
        )
    for position in range(1, 6):
        turns = [StepInput(slot, 10 * slot + position, position) for slot in range(3)]
        for a, b in zip(together.step(turns), alone.step(turns), strict=True):
            assert a.shape == b.shape
            assert np.array_equal(a, b) if made.runtime == "native" else relative_error(a, b) < MAX_ERROR / 2


def cached(runner: Runner) -> list[NDArray[Any]]:
    """Return the keys and values of the second slot of two rows, up to its capacity."""
    if isinstance(runner, Int8Runner):
        return [part[2:4].copy() for part in runner.pool.values()]
    return [part[2:4, :, : runner.capacity].copy() for part in runner.pool.values()]


def test_an_utterance_that_pauses_is_not_disturbed(made: Made) -> None:
    together, alone = runner_of(made, capacity=12), runner_of(made, capacity=12)
    for slot in range(3):
        together.prefill_embeddings(slot, prompt(2, 10, slot))
    alone.prefill_embeddings(1, prompt(2, 10, 1))
    together.step([StepInput(1, 4, 1)])
    alone.step([StepInput(1, 4, 1)])
    # Slot 1 has one position left; the others' step must neither take it nor overwrite what is before it.
    together.step([StepInput(0, 4, 1), StepInput(2, 4, 1)])
    got, same = together.step([StepInput(1, 9, 2)])[0], alone.step([StepInput(1, 9, 2)])[0]
    torch.testing.assert_close(got, same, atol=1e-4, rtol=0)
    with pytest.raises(MemoryFull):
        together.step([StepInput(1, 9, 3)])
    # It is full now; the others' step writes past its end.
    before = cached(together)
    together.step([StepInput(0, 5, 2), StepInput(2, 5, 2)])
    assert all((kept == same).all() for kept, same in zip(cached(together), before, strict=True))


def test_a_moved_utterance_continues_as_if_it_had_stayed(made: Made) -> None:
    moved, stayed = runner_of(made), runner_of(made)
    for runner in (moved, stayed):
        runner.prefill_embeddings(0, prompt(2, 6, 0))
        runner.prefill_embeddings(2, prompt(2, 9, 1))
    moved.move(2, 0)
    torch.testing.assert_close(
        moved.step([StepInput(0, 8, 1)])[0], stayed.step([StepInput(2, 8, 1)])[0], atol=1e-6, rtol=0
    )


def test_the_prefix_cache_saves_work_and_changes_nothing(made: Made) -> None:
    runner, fresh = runner_of(made), runner_of(made)
    first = prompt(2, 9, 3)
    second = torch.cat([first[:, :6], prompt(2, 5, 4)], dim=1)
    runner.prefill_embeddings(0, first)
    read: list[int] = []
    plain = runner._read

    def counted(row: int, x: NDArray[Any], known: int) -> Any:
        read.append(x.shape[-2])
        return plain(row, x, known)

    runner._read = counted  # type: ignore[method-assign]
    again = runner.prefill_embeddings(1, second)
    assert read == [5, 5], "only what follows the common prefix"
    assert relative_error(again, fresh.prefill_embeddings(1, second)) < MAX_ERROR / 2
    same = runner.prefill_embeddings(2, second)
    assert read[2:] == [1, 1], "the last position gives the logits"
    assert relative_error(same, again) < MAX_ERROR / 2


def test_after_a_fault_nothing_of_the_slot_is_used_again(made: Made) -> None:
    runner, untouched = runner_of(made), runner_of(made)
    x = prompt(2, 9, 5)
    runner.prefill_embeddings(0, x)
    for part in runner.pool.values():
        part[: len(part) // 3] = float("nan")  # the first of three slots
    for _, cached_rows in runner._prefix_cache.entries:
        for rows in cached_rows.values():
            rows[:] = float("nan")
    runner.reset(0)
    torch.testing.assert_close(runner.prefill_embeddings(0, x), untouched.prefill_embeddings(0, x))


def test_a_full_kv_cache_is_refused_before_any_utterance_has_stepped(made: Made) -> None:
    runner = runner_of(made, capacity=10)
    runner.prefill_embeddings(0, prompt(2, 5, 0))
    runner.prefill_embeddings(1, prompt(2, 10, 1))
    with pytest.raises(MemoryFull, match="at most 10"):
        runner.step([StepInput(0, 1, 1), StepInput(1, 1, 1)])
    assert runner.lengths[:2] == [5, 10]
    with pytest.raises(MemoryFull):
        runner.prefill_embeddings(2, prompt(2, 11, 2))


def test_the_size_of_the_kv_cache_is_counted(made: Made) -> None:
    rows, capacity = 2 * 2, 31
    positions, size = (32, 2) if made.runtime == "native" else (capacity + 1, 4)
    taken = 2 * 2 * rows * positions * WIDTH * size  # keys and values, layers
    assert runner_of(made, slots=2, capacity=capacity).kv_bytes == taken


@pytest.mark.parametrize("length", [31, 32, 33])
def test_nothing_special_happens_at_the_edge_of_a_block(made: Made, length: int) -> None:
    runner, x, tokens = runner_of(made, capacity=70), prompt(2, length, 8), [7, 250, 3, 3]
    exact = reference_logits(made.t3, x, tokens)
    assert relative_error(runner.prefill_embeddings(1, x), exact[0]) < MAX_ERROR
    for position, token in enumerate(tokens, 1):
        assert relative_error(runner.step([StepInput(1, token, position)])[0], exact[position]) < MAX_ERROR
    shared = torch.cat([x, prompt(2, 5, 9)], dim=1)
    assert (
        relative_error(runner.prefill_embeddings(0, shared), reference_logits(made.t3, shared, [])[0])
        < MAX_ERROR
    )


def test_t3_without_its_backbone_still_embeds_prompts(made: Made) -> None:
    whole = made.t3
    light = without_backbone(whole.config, whole.state_dict(), source=Path("t3"))
    text, ids = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])
    conditions = {"speaker": torch.ones(1, 256), "prompt_ids": ids, "exaggeration": torch.tensor([0.5])}
    with torch.inference_mode():
        a, b = (t3.prompt(text, **conditions, guided=True) for t3 in (whole, light))
    assert torch.equal(a, b)
    layers = [name for name, value in light.named_parameters() if value.is_meta]
    assert layers
    assert all(name.startswith("tfmr.") for name in layers)
