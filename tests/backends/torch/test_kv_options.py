"""A profile's cache: switched on by name, cut by a table, counted in bytes, and admitted by them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_torch import t3_of

from nightingale import TTS
from nightingale.backends import BACKENDS
from nightingale.backends.base import DEFAULT_SLOTS, Decoder, Setup
from nightingale.backends.profiles import BALANCED, EXACT, PROFILES, Profile, profile_named
from nightingale.backends.selection import find_machine, select
from nightingale.backends.torch.decoder import kv_budget, kv_layout
from nightingale.backends.torch.kv_pools import PagedKVPool
from nightingale.backends.torch.runner import TorchRunner
from nightingale.decoding import kv_retention as budgets
from nightingale.decoding.host_decoder import HostDecoder
from nightingale.decoding.kv_retention import MIN_WINDOW, WINDOW_STEP, AttentionTable
from nightingale.engine.load import Model
from nightingale.engine.scheduler import Scheduler
from nightingale.errors import CheckpointError, ConfigError, MemoryFull
from nightingale.models.layers.kv_blocks import KVBlockLayout
from nightingale_lab.bench import attention

TABLE = AttentionTable(
    model="noise",
    tokens=40,
    sentences=3,
    entropy=((0.5, 3.0), (2.0, 2.0)),
    spoken=((0.1, 0.9), (0.5, 0.5)),
)


def setup_of(profile: Profile) -> Setup:
    return Setup(profile=profile, machine=find_machine(BACKENDS, "cpu"), precision="float32")


def layout_of(model: Model, profile: Profile) -> KVBlockLayout | None:
    return kv_layout(model.source, setup_of(profile), t3_of(model))


def open_decoder(model: Model, profile: Profile) -> Decoder:
    (torch_backend,) = [backend for backend in BACKENDS if backend.name == "torch"]
    return torch_backend.open_decoder(model.source, setup_of(profile))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AttentionTable:
    """The stand-in's, as if it had been measured."""
    attention.save(TABLE, tmp_path / "noise.json")
    monkeypatch.setattr(budgets, "table_paths", lambda model, folder: [tmp_path / "noise.json"])
    return TABLE


@pytest.fixture
def short(tiny_model: Model) -> Model:
    return tiny_model.with_defaults(max_new_tokens=12)


def test_what_follows_a_profiles_name_is_switched_on() -> None:
    made = profile_named("balanced+cache=int8+keep=50+memory=1.5G+slots=3+draft=head")
    assert made.name == "balanced+cache=int8+keep=50+memory=1.5G+slots=3+draft=head"
    expected = replace(
        BALANCED, name=made.name, cache="int8", keep=50, memory_bytes=3 * 2**29, slots=3, draft="head"
    )
    assert made == expected
    assert profile_named(made.name) == made, "its name says all of it"
    assert profile_named("balanced") is PROFILES["balanced"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("balnced+cache=int8", "unknown profile"),
        ("balanced+cash=int8", "unknown profile option"),
        ("balanced+cache=int4", "unknown KV cache precision"),
        ("balanced+cache=", "unknown KV cache precision"),
        ("balanced+keep=5", "not a share"),
        ("balanced+keep=half", "not a share"),
        ("balanced+memory=lots", "not an amount of memory"),
        ("balanced+memory=0", "not an amount of memory"),
        ("balanced+slots=0", "not a number of slots"),
    ],
)
def test_a_switch_that_cannot_be_is_refused(name: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        profile_named(name)


def test_no_profile_compresses_unless_it_is_asked_to() -> None:
    for profile in PROFILES.values():
        assert (profile.cache, profile.keep, profile.memory_bytes) == ("", 100, 0)


@pytest.mark.parametrize("percent", [50, 25, 80])
def test_budgets_are_shares_of_an_utterance_and_go_where_heads_look_widely(percent: int) -> None:
    windows = TABLE.windows(percent)
    mean = sum(map(sum, windows)) / 4
    assert 0.85 * TABLE.tokens * percent / 100 <= mean <= TABLE.tokens * percent / 100
    (narrow, wide), (one, other) = windows
    assert MIN_WINDOW <= narrow <= one == other <= wide <= TABLE.tokens
    assert narrow < wide
    assert all(window % WINDOW_STEP == 0 or window == TABLE.tokens for layer in windows for window in layer)


def test_a_table_is_what_was_saved(tmp_path: Path) -> None:
    attention.save(TABLE, tmp_path / "t.json")
    assert AttentionTable.load(tmp_path / "t.json") == TABLE


@pytest.mark.parametrize("damage", ["{", "{}", '{"entropy": [[1]], "spoken": [[1, 2]]}'])
def test_a_damaged_table_is_refused(damage: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(damage)
    with pytest.raises(CheckpointError, match="cannot be read"):
        AttentionTable.load(tmp_path / "t.json")


def test_a_model_without_a_table_is_not_cut_and_says_how_to_measure_one(tiny_model: Model) -> None:
    with pytest.raises(
        ConfigError, match=r"(?s)no attention table.*nightingale_lab\.bench\.attention --model noise"
    ):
        layout_of(tiny_model, replace(BALANCED, keep=50))


def test_another_models_table_is_refused(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    attention.save(replace(TABLE, entropy=TABLE.entropy[:1], spoken=TABLE.spoken[:1]), tmp_path / "t.json")
    monkeypatch.setattr(budgets, "table_paths", lambda model, folder: [tmp_path / "t.json"])
    with pytest.raises(CheckpointError, match="belongs to another model"):
        layout_of(tiny_model, replace(BALANCED, keep=50))


def test_wrens_own_table_fits_wren() -> None:
    from nightingale import wren
    from nightingale.models.chatterbox.presets import PRESETS

    backbone = PRESETS["wren"].t3.backbone
    found = budgets.find_table("wren", wren.folder(), layers=backbone.layers, heads=backbone.heads)
    for percent in (50, 25):
        windows = found.windows(percent)
        mean = sum(map(sum, windows)) / (backbone.layers * backbone.heads)
        assert mean <= found.tokens * percent / 100


@pytest.mark.parametrize("backend", ["cuda", "cpu", "onnx"])
def test_a_compressed_cache_is_only_in_pytorch(tiny_model: Model, backend: str) -> None:
    (found,) = [one for one in BACKENDS if one.name == backend]
    precision = {"cuda": "bfloat16", "cpu": "int8", "onnx": "float32"}[backend]
    setup = replace(setup_of(replace(BALANCED, cache="int8")), precision=precision)
    setup = replace(setup, machine=replace(setup.machine, instructions="sm_90"))
    reason = found.unsupported_reason("decoder", tiny_model.info, setup)
    assert reason is not None
    assert "KV cache" in reason
    plan = select(BACKENDS, tiny_model.info, setup.machine, replace(BALANCED, cache="int8"))
    assert plan.decoder.backend.name == "torch"


def spoken(model: Model, profile: Profile) -> list[tuple[bytes, int, int]]:
    with TTS.over(model, profile) as tts:
        texts = ["One.", "Two, and a little more of it.", "Three!"]
        clips = tts.say_many(texts, seed=5)
        return [
            (audio.samples.tobytes(), audio.metrics.tokens, audio.metrics.memory_bytes) for audio in clips
        ]


def test_the_engine_speaks_over_cells_and_counts_their_bytes(short: Model, table: AttentionTable) -> None:
    profile = replace(EXACT, slots=2)
    dense, full, int8 = (
        spoken(short, replace(profile, **changes))
        for changes in ({}, {"memory_bytes": 2**30}, {"cache": "int8"})
    )
    plan, backbone = layout_of(short, replace(profile, cache="int8")), t3_of(short).config.backbone
    assert plan is not None
    assert full == dense
    for (_, tokens, all_), (_, same, fewer) in zip(dense, int8, strict=True):
        assert tokens == same == 12
        # The same positions of the same heads, in other bytes.
        assert fewer * 2 * 4 * backbone.width == all_ * backbone.heads * plan.block_bytes


def test_eviction_and_eight_bits_work_together_in_the_engine(short: Model, table: AttentionTable) -> None:
    whole, cut = (
        spoken(short, replace(EXACT, slots=2, cache="int8", **changes)) for changes in ({}, {"keep": 20})
    )
    assert [tokens for _, tokens, _ in cut] == [12] * 3
    assert all(less < all_ for (_, _, all_), (_, _, less) in zip(whole, cut, strict=True))


def test_drafts_over_a_compressed_cache_change_nothing(
    short: Model, table: AttentionTable, head_file: Path
) -> None:
    profile = replace(EXACT, slots=2, cache="int8", keep=20)
    plain, drafted = spoken(short, profile), spoken(short, replace(profile, draft=str(head_file)))
    assert drafted == plain


def test_who_does_not_fit_waits_and_is_then_served(short: Model) -> None:
    profile = replace(EXACT, slots=3, cache="int8")
    expected = spoken(short, profile)
    budget = open_decoder(short, profile).kv_budget
    most = 2 * budget.reserved(t3_of(short).config.prompt_length(40), 12)  # both rows of one
    assert spoken(short, replace(profile, memory_bytes=most)) == expected


def test_who_can_never_fit_is_told(short: Model) -> None:
    with (
        TTS.over(short, replace(BALANCED, cache="int8", memory_bytes=2000)) as tts,
        pytest.raises(MemoryFull, match="no room for another sequence"),
    ):
        tts.say("A text that needs more than that.")


def test_blocks_are_freed_when_all_utterances_have_ended(short: Model) -> None:
    profile = replace(BALANCED, slots=2, cache="int8")
    opened = open_decoder(short, profile)
    with TTS.over(short, profile) as tts:
        tts.say_many(["One.", "Two.", "Three."], seed=1)
        decoder = tts._worker.decoder
        assert isinstance(decoder, HostDecoder)
        assert isinstance(decoder.runner, TorchRunner)
        assert isinstance(decoder.runner.pool, PagedKVPool)
        assert decoder.runner.pool.block_pool.used_bytes == 0
        assert decoder.runner.kv_bytes == opened.runner.kv_bytes > 0


def test_admission_is_by_bytes_where_they_are_counted() -> None:
    scheduler = Scheduler(slots=9, queue_limit=9, budget_bytes=100)
    for request, need in ((1, 60), (2, 50), (3, 10)):
        scheduler.submit(request)
        scheduler.needs_bytes[request] = need
    assert scheduler.admit() == (1, 0)
    assert scheduler.running == [1]
    assert not scheduler.can_admit, "the second does not fit"
    assert scheduler.admit() is None, "and the third does not overtake it"
    scheduler.remove(1)
    assert [scheduler.admit(), scheduler.admit(), scheduler.admit()] == [(2, 0), (3, 1), None]
    assert sum(scheduler.needs_bytes[request] for request in scheduler.running) == 60


def test_a_request_alone_may_always_try() -> None:
    scheduler = Scheduler(slots=2, queue_limit=9, budget_bytes=100)
    scheduler.submit(1)
    scheduler.needs_bytes[1] = 1000
    assert scheduler.admit() == (1, 0)


def test_without_a_budget_slots_alone_decide() -> None:
    scheduler = Scheduler(slots=2, queue_limit=9)
    for request in (1, 2, 3):
        scheduler.submit(request)
        scheduler.needs_bytes[request] = 2**40
    assert [scheduler.admit(), scheduler.admit(), scheduler.admit()] == [(1, 0), (2, 1), None]


def test_a_dense_stream_needs_its_slot_and_fills_its_positions(tiny_model: Model) -> None:
    budget = kv_budget(tiny_model.info, t3_of(tiny_model), None)
    backbone = t3_of(tiny_model).config.backbone
    position = 2 * 4 * backbone.layers * backbone.width
    assert budget.used(10, 5) == 15 * position
    assert budget.reserved(10, 5) == budget.reserved(1, 1) > budget.used(10, 5)
    pool = open_decoder(tiny_model, EXACT).runner.kv_bytes
    assert pool == DEFAULT_SLOTS * 2 * budget.reserved(1, 1)


@pytest.fixture
def measured(tiny_model: Model, tmp_path: Path) -> Callable[[], AttentionTable]:
    return lambda: attention.measure(tiny_model, ["Hello there.", "And again."])[0]


def test_a_table_is_measured_by_watching_every_head(measured: Callable[[], AttentionTable]) -> None:
    made = measured()
    assert made == measured(), "the same each time"
    assert (len(made.entropy), len(made.entropy[0])) == (2, 2)
    assert 0 < made.tokens <= 50
    flat = torch.tensor(made.entropy)
    assert bool(((flat >= 0) & (flat <= torch.tensor(float(made.tokens + 1)).log())).all())
    assert bool(((torch.tensor(made.spoken) > 0) & (torch.tensor(made.spoken) < 1)).all())
    assert json.dumps(made.windows(50))
