"""T3 in eight bits: near the exact one, the same in any company, kept on disk and never trusted blindly."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.shared import packed_t3 as packing
from nightingale.backends.cpu import capabilities as native_able
from nightingale.backends.shared.packed_t3 import (
    FOR_ONNX,
    Packed,
    digest_of_file,
    digest_of_tensors,
    intact,
    pack,
    without_backbone,
)
from nightingale.backends.shared.quantize import round_t3, round_weight
from nightingale.errors import MemoryFull, OutputError
from nightingale.models.chatterbox.t3.config import (
    MULTILINGUAL,
    NANO,
    Gpt2Config,
    LlamaConfig,
    T3Config,
)
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_cache import KVCache

pytest.importorskip("onnxruntime")
pytest.importorskip("llvmlite")
from nightingale.backends.cpu.runner import NativeRunner
from nightingale.backends.onnx.runner import CpuRunner

Runner = CpuRunner | NativeRunner

WIDTH, LOUDER = 128, 3.0
LLAMA = replace(
    MULTILINGUAL,
    speech_vocab=6563,
    text_vocab=40,
    backbone=LlamaConfig(layers=2, width=WIDTH, heads=2, ffn=384),
)
GPT2 = replace(NANO, speech_vocab=6563, text_vocab=40, backbone=Gpt2Config(layers=2, width=WIDTH, heads=2))
NEAR = 0.03
"""Of the scores' spread: what eight bits may change in two layers. One position too few changes ten times
that."""


@dataclass(frozen=True)
class Turn:
    slot: int
    token: int
    position: int


def small(config: T3Config, seed: int = 0) -> T3:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        t3 = T3(config).eval().requires_grad_(False)
    # As drawn, attention hears every position alike, and the wrong one would pass for rounding.
    for name, weight in t3.named_parameters():
        if any(part in name for part in ("q_proj.w", "k_proj.w", "o_proj.w", "c_attn.w", "attn.c_proj.w")):
            weight.mul_(LOUDER)
    return t3


def prompt(rows: int, time: int, seed: int) -> Tensor:
    return torch.randn(rows, time, WIDTH, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Made:
    t3: T3
    packed: Packed
    runtime: str


RUNTIMES = ("onnxruntime", "native")


@pytest.fixture(scope="module", params=[f"{n} {runtime}" for n in ("llama", "gpt2") for runtime in RUNTIMES])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    name, runtime = request.param.split()
    if runtime == "native" and (against := native_able._tried(name == "llama", None)) is not None:
        pytest.skip(against)
    t3 = small(LLAMA if name == "llama" else GPT2)
    weights = t3.state_dict()
    home = tmp_path_factory.mktemp("packed")
    form = native_able.form() if runtime == "native" else FOR_ONNX
    packed = pack(t3.config, weights, home=home, source=digest_of_tensors(weights), form=form)
    return Made(t3, packed, runtime)


def runner_of(
    made: Made, *, batched: bool = True, slots: int = 3, rows: int = 2, capacity: int = 40
) -> Runner:
    light = without_backbone(made.t3.config, made.t3.state_dict(), source=Path("t3"))
    room = {"slots": slots, "rows_per_slot": rows, "capacity": capacity, "batched": batched, "threads": 1}
    if made.runtime == "native":
        return native_able.open_runner(light, made.packed, **room)
    return CpuRunner(light, made.packed.graph, **room)


def spoken(t3: T3, x: Tensor, tokens: list[int]) -> list[Tensor]:
    """The scores after a prompt and after each token, the plain way."""
    memory: list[KVCache] = t3.new_kv_cache(rows=len(x), capacity=60)
    with torch.inference_mode():
        out = [t3.next_logits(x, memory)]
        for position, token in enumerate(tokens, 1):
            out.append(t3.next_logits(t3.embed_speech(torch.full((len(x), 1), token), position), memory))
    return out


def off(scores: Tensor, exact: Tensor) -> float:
    """The error, over the spread of the scores."""
    return float((scores - exact).square().mean().sqrt() / exact.std())


def test_scores_are_near_the_exact_ones_from_the_prompt_to_the_last_token(made: Made) -> None:
    runner, x, tokens = runner_of(made), prompt(2, 9, 1), [7, 250, 3, 3, 99]
    exact = spoken(made.t3, x, tokens)
    errors = [off(runner.begin(0, x), exact[0])]
    for position, token in enumerate(tokens, 1):
        errors.append(off(runner.step([Turn(0, token, position)])[0], exact[position]))
    assert 0 < max(errors) < NEAR
    shifted = spoken(made.t3, x[:, 1:], tokens)
    assert off(shifted[-1], exact[-1]) > 5 * NEAR, "one position less must not pass for rounding"


def test_the_error_is_that_of_the_twin_with_the_same_rounding(made: Made) -> None:
    """Not token for token: a sum that ends another way can tip a rounding in the next layer. In size."""
    x, tokens = prompt(2, 12, 2), [5, 17, 290, 41]
    exact = spoken(made.t3, x, tokens)
    twin = small(made.t3.config)
    round_t3(twin)
    rounded = spoken(twin, x, tokens)
    runner = runner_of(made)
    ours = [runner.begin(0, x)]
    ours += [runner.step([Turn(0, token, at)])[0] for at, token in enumerate(tokens, 1)]
    mine = torch.tensor([off(a, b) for a, b in zip(ours, exact, strict=True)]).mean()
    its = torch.tensor([off(a, b) for a, b in zip(rounded, exact, strict=True)]).mean()
    assert 0.7 < mine / its < 1.4
    between = torch.tensor([off(a, b) for a, b in zip(ours, rounded, strict=True)]).mean()
    assert between < its, "nearer to its twin"


def test_in_company_each_hears_what_it_hears_alone(made: Made) -> None:
    together, alone = runner_of(made), runner_of(made, batched=False)
    for slot, (rows, time) in enumerate([(2, 5), (1, 11), (2, 8)]):
        x = prompt(rows, time, slot)
        torch.testing.assert_close(together.begin(slot, x), alone.begin(slot, x), atol=1e-5, rtol=0)
    for position in range(1, 6):
        turns = [Turn(slot, 10 * slot + position, position) for slot in range(3)]
        for a, b in zip(together.step(turns), alone.step(turns), strict=True):
            assert a.shape == b.shape
            assert torch.equal(a, b) if made.runtime == "native" else off(a, b) < NEAR / 2


def remembered(runner: Runner) -> list[NDArray[Any]]:
    """Of the second slot, of two rows; not what stands past its capacity."""
    if isinstance(runner, NativeRunner):
        return [part[2:4].copy() for part in runner.pool.values()]
    return [part[2:4, :, : runner.capacity].copy() for part in runner.pool.values()]


def test_one_who_pauses_is_not_disturbed(made: Made) -> None:
    together, alone = runner_of(made, capacity=12), runner_of(made, capacity=12)
    for slot in range(3):
        together.begin(slot, prompt(2, 10, slot))
    alone.begin(1, prompt(2, 10, 1))
    together.step([Turn(1, 4, 1)])
    alone.step([Turn(1, 4, 1)])
    # Slot 1 has one position left, and the others' step must not take it, nor write over what is before it.
    together.step([Turn(0, 4, 1), Turn(2, 4, 1)])
    heard, same = together.step([Turn(1, 9, 2)])[0], alone.step([Turn(1, 9, 2)])[0]
    torch.testing.assert_close(heard, same, atol=1e-4, rtol=0)
    with pytest.raises(MemoryFull):
        together.step([Turn(1, 9, 3)])
    # It is full now, and the others' step writes past its end, not over it.
    before = remembered(together)
    together.step([Turn(0, 5, 2), Turn(2, 5, 2)])
    assert all((kept == same).all() for kept, same in zip(remembered(together), before, strict=True))


def test_a_moved_utterance_goes_on_as_if_it_had_stayed(made: Made) -> None:
    moved, stayed = runner_of(made), runner_of(made)
    for runner in (moved, stayed):
        runner.begin(0, prompt(2, 6, 0))
        runner.begin(2, prompt(2, 9, 1))
    moved.move(2, 0)
    torch.testing.assert_close(
        moved.step([Turn(0, 8, 1)])[0], stayed.step([Turn(2, 8, 1)])[0], atol=1e-6, rtol=0
    )


def test_a_prompt_is_not_read_twice_and_that_changes_nothing(made: Made) -> None:
    runner, fresh = runner_of(made), runner_of(made)
    first = prompt(2, 9, 3)
    second = torch.cat([first[:, :6], prompt(2, 5, 4)], dim=1)
    runner.begin(0, first)
    read: list[int] = []
    plain = runner._read

    def counted(row: int, x: Tensor, known: int) -> Any:
        read.append(x.shape[-2])
        return plain(row, x, known)

    runner._read = counted  # type: ignore[method-assign]
    again = runner.begin(1, second)
    assert read == [5, 5], "only what follows the common beginning"
    assert off(again, fresh.begin(1, second)) < NEAR / 2
    same = runner.begin(2, second)
    assert read[2:] == [1, 1], "the last position gives the scores"
    assert off(same, again) < NEAR / 2


def test_after_a_fault_nothing_of_the_slot_is_used_again(made: Made) -> None:
    runner, untouched = runner_of(made), runner_of(made)
    x = prompt(2, 9, 5)
    runner.begin(0, x)
    for part in runner.pool.values():
        part[: len(part) // 3] = float("nan")  # the first of three slots
    for _, kept in runner._heard.kept:
        for rows in kept.values():
            rows[:] = float("nan")
    runner.wipe(0)
    torch.testing.assert_close(runner.begin(0, x), untouched.begin(0, x))


def test_a_full_memory_is_refused_before_anyone_has_stepped(made: Made) -> None:
    runner = runner_of(made, capacity=10)
    runner.begin(0, prompt(2, 5, 0))
    runner.begin(1, prompt(2, 10, 1))
    with pytest.raises(MemoryFull, match="at most 10"):
        runner.step([Turn(0, 1, 1), Turn(1, 1, 1)])
    assert runner.lengths[:2] == [5, 10]
    with pytest.raises(MemoryFull):
        runner.begin(2, prompt(2, 11, 2))


def test_the_pool_counts_what_it_may_take(made: Made) -> None:
    rows, capacity = 2 * 2, 31
    positions, size = (32, 2) if made.runtime == "native" else (capacity + 1, 4)
    taken = 2 * 2 * rows * positions * WIDTH * size  # keys and values, layers
    assert runner_of(made, slots=2, capacity=capacity).bytes == taken


@pytest.mark.parametrize("length", [31, 32, 33])
def test_nothing_happens_at_the_edge_of_a_block(made: Made, length: int) -> None:
    runner, x, tokens = runner_of(made, capacity=70), prompt(2, length, 8), [7, 250, 3, 3]
    exact = spoken(made.t3, x, tokens)
    assert off(runner.begin(1, x), exact[0]) < NEAR
    for position, token in enumerate(tokens, 1):
        assert off(runner.step([Turn(1, token, position)])[0], exact[position]) < NEAR
    shared = torch.cat([x, prompt(2, 5, 9)], dim=1)
    assert off(runner.begin(0, shared), spoken(made.t3, shared, [])[0]) < NEAR


def packed_once(home: Path) -> tuple[dict[str, Tensor], Packed]:
    weights = small(LLAMA).state_dict()
    return weights, pack(LLAMA, weights, home=home, source="a")


def test_weights_are_packed_once(tmp_path: Path) -> None:
    weights, first = packed_once(tmp_path)
    second = pack(LLAMA, weights, home=tmp_path, source="a")
    assert (first.fresh, second.fresh) == (True, False)
    assert first.folder == second.folder
    assert pack(LLAMA, weights, home=tmp_path, source="b").folder != first.folder
    assert not list(tmp_path.glob(".*")), "nothing half-made stays"


@pytest.mark.parametrize("name", [packing.GRAPH, packing.WEIGHTS, packing.PLACES, packing.SEAL])
@pytest.mark.parametrize("how", ["one bit", "cut short", "gone"])
def test_a_damaged_folder_is_found_and_made_again(tmp_path: Path, name: str, how: str) -> None:
    weights, packed = packed_once(tmp_path)
    path = packed.folder / name
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "cut short":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])
    assert not intact(packed.folder)
    again = pack(LLAMA, weights, home=tmp_path, source="a")
    assert again.fresh
    assert intact(again.folder)
    assert (again.folder / name).read_bytes() == data


def test_every_weight_is_found_where_it_was_put(tmp_path: Path) -> None:
    weights, packed = packed_once(tmp_path)
    found = packed.weights()
    norm = "tfmr.layers.1.post_attention_layernorm.weight"
    assert found[norm].tolist() == weights[norm].tolist()
    kept = round_weight(weights["speech_head.weight"])
    assert (found["scores.codes"] == kept.codes.numpy()).all()
    assert (found["scores.scales"] == kept.scales.numpy()).all()
    assert sum(part.nbytes for part in found.values()) > 0.95 * packed.bytes


def test_weights_of_a_file_are_let_go_once_they_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, packed = packed_once(tmp_path / "a")
    gone: list[int] = []
    monkeypatch.setattr(packing, "release_pages", lambda weight: gone.append(id(weight)))
    again = pack(LLAMA, weights, home=tmp_path / "b", source="a", mapped=True)
    assert (again.folder / packing.WEIGHTS).read_bytes() == (packed.folder / packing.WEIGHTS).read_bytes()
    used = [name for name in weights if name.startswith("tfmr.") or name == "speech_head.weight"]
    assert len(gone) == len(set(gone)) == len(used) - packing.PARTS
    assert set(gone) < {id(weights[name]) for name in used}


def test_a_failure_half_way_leaves_nothing(tmp_path: Path) -> None:
    weights = small(LLAMA).state_dict()
    del weights["tfmr.layers.1.mlp.up_proj.weight"]
    with pytest.raises(KeyError):
        pack(LLAMA, weights, home=tmp_path, source="a")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("not a folder")
    with pytest.raises(OutputError, match="plan without int8"):
        pack(LLAMA, small(LLAMA).state_dict(), home=home, source="a")


def test_a_files_digest_is_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, home = tmp_path / "weights", tmp_path / "home"
    path.write_bytes(b"one")
    reads: list[Path] = []
    plain = packing._digest
    monkeypatch.setattr(packing, "_digest", lambda p: (reads.append(p), plain(p))[1])
    first = digest_of_file(path, home=home)
    assert digest_of_file(path, home=home) == first
    assert len(reads) == 1
    next(home.glob("*.known.json")).write_text(json.dumps(["damaged"]))
    assert digest_of_file(path, home=home) == first
    path.write_bytes(b"another")
    assert digest_of_file(path, home=home) != first
    assert len(reads) == 3


def test_the_digest_of_tensors_knows_names_shapes_and_values() -> None:
    a = {"w": torch.zeros(2, 3)}
    assert digest_of_tensors(a) == digest_of_tensors({"w": torch.zeros(2, 3)})
    others = ({"v": torch.zeros(2, 3)}, {"w": torch.zeros(3, 2)}, {"w": torch.zeros(2, 3).fill_(1)})
    assert len({digest_of_tensors(x) for x in (a, *others)}) == 4


def test_without_its_backbone_t3_still_makes_prompts(made: Made) -> None:
    whole = made.t3
    light = without_backbone(whole.config, whole.state_dict(), source=Path("t3"))
    text, ids = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])
    facts = {"speaker": torch.ones(1, 256), "prompt_ids": ids, "exaggeration": torch.tensor([0.5])}
    with torch.inference_mode():
        a, b = (t3.prompt(text, **facts, guided=True) for t3 in (whole, light))
    assert torch.equal(a, b)
    layers = [name for name, value in light.named_parameters() if value.is_meta]
    assert layers
    assert all(name.startswith("tfmr.") for name in layers)
