"""Sessions: the order of stages, failures and retries, and the transfer of results."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lab.train.tiny_training import make_everything_tiny, tiny_assets
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nightingale.errors import CheckpointError
from nightingale_lab.train import session, supervisor, vocoder
from nightingale_lab.train.__main__ import build_parser, main
from nightingale_lab.train.loop import read_log
from nightingale_lab.train.plan import plan, table
from nightingale_lab.train.session import create_state, monitor, read_settings
from nightingale_lab.train.session_tasks import Settings, Task
from nightingale_lab.train.supervisor import Launch, SessionStatus, supervise
from nightingale_lab.train.volumes import pack, unpack


class Thread:
    """A stage that runs inside the test."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.code: int | None = None
        self.killed = False
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
            self.code = 0
        except BaseException as error:
            self.error, self.code = error, 1

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.killed = True


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "POLL_EVERY_S", 0.01)


def settings(folder: Path, **given: object) -> Settings:
    made = Settings(
        assets=str(folder / "assets"), state=str(folder / "state"), plan_s=900.0, device="cpu", **given
    )  # type: ignore[arg-type]
    create_state(made)
    return made


def task(name: str, *needs: Path, ends_s: float = 60.0) -> Task:
    return Task(name=name, needs=needs, ends_s=ends_s, arguments=lambda _: [name])


def test_a_whole_session_at_tiny_size_leaves_every_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_everything_tiny(monkeypatch)
    tiny_assets(tmp_path / "assets", lines=60)
    brief, one = ["--budget-s", "0.01"], ["--batch", "1"]
    options = {
        "data": ["--hours", "9", "--first-hours", "0.003", "--batch-seconds", "12"],
        "voice-encoder": [*brief, *one],
        "tokenizer": [*brief, *one],
        "vocoder": ["--max-steps", "1"],
        "tokens": ["--budget-s", "60"],
        "t3": brief,
        "flow": [*one, "--match-s", "0.01", "--refine-s", "0.01"],
    }
    made, before = settings(tmp_path, options=options, tokenizer_s=9.0), torch.get_rng_state()
    try:
        status = supervise(made, plan(made), in_threads(children := []))
    finally:
        torch.set_rng_state(before)
    assert not [child.error for child in children if child.code]
    assert {row.state for row in status.rows.values()} == {"done"}

    said: list[str] = []
    monitor(tmp_path / "state", tmp_path / "results", budget_s=1.0, write=said.append)
    sizes = unpack([tmp_path / "results"], tmp_path / "back")
    assert set(sizes) == {Path(name).stem for name in session.RESULTS}
    assert "still to send: nothing" in said[-1]
    assert (tmp_path / "back" / "logs" / "t3.jsonl").read_text().startswith("{")
    assert load_file(tmp_path / "back" / "vocoder.safetensors")["head.weight"].dtype == torch.float16
    with safe_open(tmp_path / "back" / "vocoder.safetensors", framework="pt") as file:
        assert float(file.metadata()["elapsed_s"]) > 0

    # A second session keeps the tokenizer and the voice encoder, and its flow has a head start.
    options["flow"] = [*one, "--match-s", "0", "--refine-s", "0.2"]
    options["flow-early"] = [*options["flow"], *brief]
    next_one = settings(tmp_path / "next", options=options, start_from=str(tmp_path / "back"))
    next_one = replace(next_one, assets=made.assets)
    try:
        status = supervise(next_one, plan(next_one), in_threads(children := []))
    finally:
        torch.set_rng_state(before)
    assert not [child.error for child in children if child.code]
    assert {row.state for row in status.rows.values()} == {"done"}
    assert {"tokenizer", "voice-encoder"}.isdisjoint(status.rows)
    steps = [row["step"] for row in read_log(tmp_path / "next" / "state" / "out" / "flow.jsonl")]
    assert steps == sorted(steps)
    assert len(steps) > 1


def test_a_call_ends_when_there_is_nothing_to_train_on(tmp_path: Path) -> None:
    made = settings(tmp_path)
    (tmp_path / "state" / "heartbeat").touch()
    SessionStatus(Path(made.state), 5.0, {"data": supervisor.TaskStatus(state="failed 1")}).write()
    said: list[str] = []
    monitor(tmp_path / "state", tmp_path / "results", budget_s=3600.0, write=said.append)
    assert "nothing to train on" in said[0]


def test_a_call_ends_when_every_stage_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = settings(tmp_path)
    (tmp_path / "state" / "heartbeat").touch()
    SessionStatus(Path(made.state), 5.0, {"flow": supervisor.TaskStatus()}).write()
    monkeypatch.setattr(session, "IDLE_S", 0.1)
    said: list[str] = []
    monitor(tmp_path / "state", tmp_path / "results", budget_s=3600.0, write=said.append)
    assert any("no stage runs" in line for line in said)


def test_a_call_on_another_machine_ends_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ["--state", str(tmp_path / "none")]
    with pytest.raises(SystemExit):
        session.main([*state, "--resume"])
    assert "no session" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        session.main([*state, "--assets", str(tmp_path / "lost")])
    assert "no folder" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_supervisor_that_was_killed_is_replaced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Path(settings(tmp_path).state)
    (state / "heartbeat").touch()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    started: list[Path] = []
    monkeypatch.setattr(session, "detach", started.append)
    (state / session.PID).write_text(str(os.getpid()))
    session.resume(state)
    assert not started
    (state / session.PID).write_text(str(ended.pid))
    session.resume(state)
    assert started == [state]


def in_threads(children: list[Thread]) -> Launch:
    def launch(arguments: list[str], log: Path, state: Path) -> Thread:
        del log, state
        children.append(Thread(lambda: main(arguments)))
        return children[-1]

    return launch


def test_every_task_has_valid_arguments(tmp_path: Path) -> None:
    made = settings(tmp_path, tokenizer_s=100.0)
    for each in plan(made):
        given = each.arguments(100.0)
        if given[0] == "vocoder":
            vocoder.build_parser().parse_args(given[1:])
        else:
            assert build_parser().parse_args(given).stage == each.name.removesuffix("-early")
    assert "vocoder" in table(plan(made))


def test_a_kept_tokenizer_is_neither_trained_nor_sent_back(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    save_file({"w": torch.ones(1)}, earlier / "tokenizer.safetensors")
    save_file({"w": torch.ones(1)}, earlier / "vocoder.safetensors", metadata={"elapsed_s": "313.0"})
    made = settings(tmp_path, start_from=str(earlier))
    tasks = {each.name: each for each in plan(made)}
    assert "tokenizer" not in tasks
    assert made.done_marker("tokenizer").exists()
    given = tasks["vocoder"].arguments(500.0)
    assert float(given[given.index("--plan-s") + 1]) == pytest.approx(313 + 500 - made.load_s)
    early, late = (tasks[name].arguments(100.0) for name in ("flow-early", "flow"))
    assert float(early[early.index("--budget-s") + 1]) == 100 - made.load_s
    assert early[early.index("--refine-s") + 1] == late[late.index("--refine-s") + 1]
    assert "--budget-s" not in late
    again = tasks["vocoder"].arguments(90.0)
    assert again[again.index("--plan-s") + 1] == given[given.index("--plan-s") + 1]
    (tmp_path / "state" / "finished").touch()
    monitor(tmp_path / "state", tmp_path / "results", budget_s=1.0, write=lambda _: None)
    assert not list((tmp_path / "results").glob("volume*"))


def test_an_optional_task_that_fails_blocks_no_other(tmp_path: Path) -> None:
    made = settings(tmp_path)
    head_start = Task(
        name="early", needs=(tmp_path / "never",), ends_s=0.0, arguments=lambda _: [], optional=True
    )
    supervise(made, [head_start], lambda *_: pytest.fail("nothing may start"))
    assert made.done_marker("early").exists()


def test_a_trained_voice_encoder_is_not_trained_again(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    assert "voice-encoder" in {each.name for each in plan(settings(tmp_path, start_from=str(earlier)))}
    save_file({"w": torch.ones(1)}, earlier / "voice_encoder.safetensors")
    assert "voice-encoder" not in {each.name for each in plan(settings(tmp_path, start_from=str(earlier)))}


def test_a_task_waits_for_its_dependencies_and_a_failed_one_blocks_no_other(tmp_path: Path) -> None:
    made, order = settings(tmp_path), []
    flag = tmp_path / "flag"

    def launch(arguments: list[str], log: Path, state: Path) -> Thread:
        order.append(arguments[0])

        def work() -> None:
            if arguments[0] == "bad":
                raise RuntimeError
            flag.touch()

        return Thread(work)

    tasks = [task("second", flag), task("bad"), task("first"), task("orphan", tmp_path / "never", ends_s=0.3)]
    status = supervise(made, tasks, launch)
    states = {name: row.state for name, row in status.rows.items()}
    assert states == {"second": "done", "bad": "failed 1", "first": "done", "orphan": "too late"}
    assert order.index("first") < order.index("second")
    assert order.count("bad") == 2


def test_a_task_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "GRACE_S", 0.1)
    stop, children = threading.Event(), []

    def launch(arguments: list[str], log: Path, state: Path) -> Thread:
        children.append(Thread(lambda: stop.wait(30) and None))
        return children[-1]

    status = supervise(settings(tmp_path), [task("endless", ends_s=0.1)], launch)
    stop.set()
    assert status.rows["endless"].state == "killed"
    assert children[0].killed


def test_a_new_supervisor_continues_after_a_killed_one(tmp_path: Path) -> None:
    made, launched = settings(tmp_path), []

    def launch(arguments: list[str], log: Path, state: Path) -> Thread:
        launched.append(arguments[0])
        return Thread(lambda: None)

    supervise(made, [task("one")], launch)
    started = (tmp_path / "state" / "started").read_text()
    supervise(read_settings(tmp_path / "state"), [task("one"), task("two")], launch)
    assert launched == ["one", "two"]
    assert (tmp_path / "state" / "started").read_text() == started


def test_a_call_retries_failed_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, code = settings(tmp_path), [1]
    state = Path(made.state)

    def launch(arguments: list[str], log: Path, state: Path) -> Thread:
        child = Thread(lambda: None)
        child.thread.join()
        child.code = code[0]
        return child

    tasks = [task("one"), task("slow", tmp_path / "flag", ends_s=20.0)]
    running = Thread(lambda: supervise(made, tasks, launch))  # type: ignore[arg-type, return-value]
    while not SessionStatus.read(state).failed:
        time.sleep(0.01)
    code[0] = 0
    session.resume(state)
    while SessionStatus.read(state).failed:
        time.sleep(0.01)
    (tmp_path / "flag").touch()
    running.thread.join(10)
    assert {name: row.state for name, row in SessionStatus.read(state).rows.items()} == {
        "one": "done",
        "slow": "done",
    }

    started: list[Path] = []
    monkeypatch.setattr(session, "detach", started.append)
    session.resume(state)
    assert not started
    SessionStatus(state, 5.0, {"one": supervisor.TaskStatus(state="failed 1")}).write()
    session.resume(state)
    assert started == [state]


def test_a_stage_runs_as_a_process_with_an_exit_status(tmp_path: Path) -> None:
    child = supervisor.start_process(["never"], tmp_path / "never.log", tmp_path)
    for _ in range(600):
        if child.poll() is not None:
            break
        time.sleep(0.05)
    assert child.poll() == 2
    assert "invalid choice" in supervisor.last_line(tmp_path / "never.log")


def test_a_call_ends_with_its_budget_while_the_stages_continue(tmp_path: Path) -> None:
    made = settings(tmp_path)
    (tmp_path / "state" / "heartbeat").touch()
    SessionStatus(Path(made.state), 5.0, {"t3": supervisor.TaskStatus(state="runs")}).write()
    said: list[str] = []
    monitor(tmp_path / "state", tmp_path / "results", budget_s=session.LAST_COPY_S + 0.3, write=said.append)
    assert "t3" in said[0]


def weights(folder: Path, name: str, megabytes: float) -> Path:
    folder.mkdir(exist_ok=True)
    rows = int(megabytes * 2**20 / 4 / 1000)
    save_file(
        {f"w{i}": torch.full((rows // 10, 1000), float(i)) for i in range(10)}, folder / f"{name}.safetensors"
    )
    return folder / f"{name}.safetensors"


def test_results_are_packed_in_volumes_as_far_as_they_fit(tmp_path: Path) -> None:
    sizes = {"big": 3.0, "huge": 9.0, "small": 1.0}
    files = [weights(tmp_path / "a", name, size) for name, size in sizes.items()]
    log = tmp_path / "a" / "x.log"
    log.write_text("said")
    sent = pack(files, [log], tmp_path / "out", volume_bytes=2**20, total_bytes=5 * 2**20)
    assert sent == ["big", "small"]
    assert all(v.stat().st_size <= 2**20 + 4096 for v in (tmp_path / "out").iterdir())
    assert set(unpack([tmp_path / "out"], tmp_path / "back")) == {"big", "small"}
    for name in ("big", "small"):
        before, after = (load_file(f / f"{name}.safetensors") for f in (tmp_path / "a", tmp_path / "back"))
        assert all(torch.equal(before[k], after[k]) for k in before)
    assert (tmp_path / "back" / "logs" / "x.log").read_text() == "said"


def test_a_missing_volume_is_detected(tmp_path: Path) -> None:
    pack([weights(tmp_path / "a", "big", 3.0)], [], tmp_path / "out", volume_bytes=2**20)
    (tmp_path / "out" / "volume1.safetensors").unlink()
    with pytest.raises(CheckpointError, match="tensors of big"):
        unpack([tmp_path / "out"], tmp_path / "back")


def test_a_result_is_sent_again_only_when_it_changed(tmp_path: Path) -> None:
    made = settings(tmp_path)
    state = Path(made.state)
    (state / "finished").touch()
    weights(made.out, "t3", 0.1)
    for expected in ({"t3"}, set()):
        monitor(state, tmp_path / "results", budget_s=1.0, write=lambda _: None)
        held = list((tmp_path / "results").glob("volume*"))
        assert (set(unpack([tmp_path / "results"], tmp_path / "back")) if held else set()) == expected
    weights(made.out, "t3", 0.2)
    monitor(state, tmp_path / "results", budget_s=1.0, write=lambda _: None)
    assert set(unpack([tmp_path / "results"], tmp_path / "back")) == {"t3"}


def test_results_that_waited_longest_are_sent_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = settings(tmp_path)
    names = ("t3", "flow.refine", "voice_encoder")
    paths = [next(Path(p) for p in session.RESULTS if Path(p).stem == name) for name in names]
    state, packed = Path(made.state), []

    def only_two(files: list[Path], *_: object, **__: object) -> list[str]:
        packed.append([file.stem for file in files])
        return [file.stem for file in files[:2]]

    monkeypatch.setattr("nightingale_lab.train.volumes.pack", only_two)
    for turn in range(3):
        for path in paths:
            (state / path).parent.mkdir(parents=True, exist_ok=True)
            (state / path).write_bytes(bytes(turn + 1))
        before = session._sent(state)
        sent = session.copy_results(state, tmp_path / "results", before)
        session._store_sent(state, before, sent)
    assert packed[1][0] == packed[0][2]
    assert packed[2][0] == packed[1][2]
