"""Sessions that continue T3: from a packed wren, with a teacher or on stored speech tokens alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.train.test_session import in_threads, settings
from lab.train.test_token_bank import make_bank
from lab.train.tiny_training import make_everything_tiny, tiny_assets
from safetensors.torch import save_file

from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab.train import session, supervisor, t3
from nightingale_lab.train.__main__ import build_parser
from nightingale_lab.train.asset_files import Assets
from nightingale_lab.train.loop import read_log
from nightingale_lab.train.pack_weights import pack
from nightingale_lab.train.plan import plan
from nightingale_lab.train.seeding import seeded
from nightingale_lab.train.session import monitor
from nightingale_lab.train.supervisor import supervise
from nightingale_lab.train.token_bank import TokenBank
from nightingale_lab.train.volumes import unpack


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "POLL_EVERY_S", 0.01)


@pytest.mark.parametrize("hours", [9.0, 0.0])
def test_a_session_that_continues_t3_starts_from_a_packed_wren_and_returns_its_bank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    make_everything_tiny(monkeypatch)
    monkeypatch.setattr(t3, "GUIDED_HEADS", {0: (1,)})
    tiny_assets(tmp_path / "assets", lines=60)
    packed_wren(tmp_path / "wren")
    if not hours:
        bank = replace(make_bank(clips=60), line=np.arange(60, dtype=np.int32))
        digest = Assets(tmp_path / "assets").lines_digest
        bank.save_compact(tmp_path / "wren" / "compact_bank.safetensors", lines_digest=digest)
    brief = ["--budget-s", "0.01"]
    options = {
        "data": ["--hours", "9", "--first-hours", "0.003", "--batch-seconds", "12"],
        "tokens": ["--budget-s", "60"],
        "t3-early": brief,
        "t3": brief,
        "flow": ["--batch", "1", "--match-s", "0", "--refine-s", "0.01"],
    }
    given = {"start_from": str(tmp_path / "wren"), "continue_t3": True, "hours": hours, "options": options}
    made, before = settings(tmp_path, **given), torch.get_rng_state()
    (tmp_path / "state" / "teacher").touch()
    try:
        status = supervise(made, plan(made), in_threads(children := []))
    finally:
        torch.set_rng_state(before)
    assert not [child.error for child in children if child.code]
    assert {row.state for row in status.rows.values()} == {"done"}
    assert {"tokenizer", "vocoder", "voice-encoder"}.isdisjoint(status.rows)
    monitor(tmp_path / "state", tmp_path / "results", budget_s=1.0, write=lambda _: None)
    results = {"t3"} | ({"compact_bank", "flow.refine"} if hours else set())
    assert set(unpack([tmp_path / "results"], tmp_path / "back")) == results
    log = read_log(tmp_path / "back" / "logs" / "t3.jsonl")
    if not hours:
        assert log[-1]["guided_loss"] > 0  # the tones of the teacher have no words
    else:
        # The returned bank is what the next session trains on.
        encode = Assets(tmp_path / "assets").encode
        back = TokenBank.load(tmp_path / "back" / "compact_bank.safetensors", encode)
        assert (back.word >= 0).all()


def packed_wren(folder: Path) -> None:
    """Write the files of a wren from which a session continues, as `export` writes them."""
    preset = PRESETS["wren"]
    with seeded(0):
        nets = {"flow.": Flow(preset.flow), "tokenizer.": SpeechTokenizer(preset.speech_tokenizer)}
        t3_net = T3(preset.t3)
    s3gen = {prefix + name: t for prefix, net in nets.items() for name, t in net.state_dict().items()}
    folder.mkdir()
    save_file(pack(s3gen), folder / "s3gen.safetensors")
    save_file(pack(t3_net.state_dict()), folder / "t3.safetensors")


def test_the_teacher_may_arrive_after_the_first_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = settings(tmp_path, start_from=str(tmp_path), continue_t3=True)
    monkeypatch.setattr(session, "detach", lambda _: None)
    marker = Path(made.state) / "teacher"
    parts = [tmp_path / "assets" / folder / name for folder, name in (("a", "part0.bin"), ("b", "part1.bin"))]
    for part in parts:
        session.resume(Path(made.state))
        assert not marker.exists()
        part.parent.mkdir(parents=True)
        part.touch()
    session.resume(Path(made.state))
    assert marker.exists()


def test_a_session_that_continues_t3_needs_weights(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        session.main(["--continue-t3"])
    assert "--from" in capsys.readouterr().err


def test_both_calls_of_t3_share_one_learning_rate_schedule(tmp_path: Path) -> None:
    made = settings(tmp_path, start_from=str(tmp_path), continue_t3=True, processes=3)
    tasks = {each.name: each for each in plan(made)}
    assert {f"single-speaker{n}" for n in range(3)} < set(tasks)
    early, late = (tasks[name].arguments(200.0) for name in ("t3-early", "t3"))
    assert early[early.index("--plan-s") + 1] == late[late.index("--plan-s") + 1]
    assert "--compact-bank" in late
    assert "--compact-bank" not in early
    for each in tasks.values():
        build_parser().parse_args(each.arguments(100.0))
