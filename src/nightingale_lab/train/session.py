"""Stage `session`: run all stages, partly in parallel, within a deadline.

    python -m nightingale_lab.train session --assets DIR --results DIR --plan-s 1560 --budget-s 585

The stages run in processes that outlive this call. The call monitors them, copies results every minute, and ends
after its budget. The next call continues to monitor, or restarts killed processes from their last states. So a
machine with a limit of ten minutes per call is used without gaps. A result is returned again only if it changed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from nightingale_lab.train.corpus import READY
from nightingale_lab.train.plan import plan, table
from nightingale_lab.train.session_tasks import PEOPLE, SPLIT, TEACHER, Settings
from nightingale_lab.train.supervisor import (
    FINISHED,
    HEARTBEAT,
    RETRY,
    SessionStatus,
    start_process,
    supervise,
)

RESULTS = (
    "out/vocoder/vocoder.safetensors",
    "out/voices.safetensors",
    "out/voice_encoder.safetensors",
    "out/t3.safetensors",
    "out/flow.refine.safetensors",
    "out/tokenizer.safetensors",
    "out/bank.safetensors",
    "out/vocoder/discriminators.safetensors",
    "out/flow.match.safetensors",
)
"""Files to return, in order of priority."""
CONTINUED_RESULTS = (
    "out/t3.safetensors",
    "out/compact_bank.safetensors",
    "out/flow.refine.safetensors",
)
"""The files of a session that continues T3. The first call that has the bank returns it; later ones have room for
the flow."""
RENDERING_RESULTS = (
    "out/tokenizer_people.safetensors",
    "out/t3.safetensors",
    "out/voice_encoder.safetensors",
    "out/vocoder/vocoder.safetensors",
    "out/flow.refine.safetensors",
    "out/vocoder/discriminators.safetensors",
)
"""The files of a session that continues flow, vocoder and voice encoder, and T3 if its stages are named."""
AS_FLOAT16 = frozenset({"vocoder"})
SETTINGS, SENT, PID = "settings.json", "sent.json", "supervisor.pid"
COPY_EVERY_S, POLL_EVERY_S, REPORT_EVERY_S = 60.0, 1.0, 15.0
LAST_COPY_S = 12.0
"""The last copy of a call starts this long before its end."""
TEACHER_FILES = ("part0.bin", "part1.bin")
PEOPLE_FILES = ("human_clips.npz", "human_phonemes.npz", "resemblyzer.safetensors")
"""Files that may arrive with a later call; stages that need them wait."""
IDLE_S = 45.0
"""A call ends when no stage has run for so long: those that wait need files of a later call."""
STALE_S = 60.0
"""A supervisor without a heartbeat for so long has died. Its start may take 20 seconds."""


def main(arguments: list[str] | None = None) -> None:
    args = parser().parse_args(arguments)
    if args.supervise:
        settings = read_settings(args.state)
        supervise(settings, plan(settings), start_process)
        return
    if args.resume:
        if not (args.state / SETTINGS).is_file():
            parser().error(f"--resume: no session in {args.state}, so this is another machine: start again")
        resume(args.state)
        monitor(args.state, args.results, budget_s=args.budget_s, write=_write_line)
        return
    if (args.continue_t3 or args.continue_rendering) and args.start_from is None:
        parser().error("--continue-… needs --from, a folder with the weights to continue")
    for folder in (args.assets, args.start_from):
        if folder is not None and not folder.is_dir():
            parser().error(f"no folder {folder}: it must be sent to this machine first")
    settings = Settings(
        assets=str(args.assets.resolve()),
        state=str(args.state.resolve()),
        plan_s=args.plan_s,
        start_from=str(args.start_from.resolve()) if args.start_from else None,
        hours=args.hours,
        tokenizer_s=args.tokenizer_s,
        device=args.device,
        continue_t3=args.continue_t3,
        continue_rendering=args.continue_rendering,
        processes=args.processes,
        options={stage: shlex.split(more) for stage, more in args.also},
        stages=args.stages,
    )
    if args.plan:
        sys.stdout.write(table(plan(settings)) + "\n")
        return
    if not (args.state / SETTINGS).is_file():
        create_state(settings)
    resume(args.state)
    monitor(args.state, args.results, budget_s=args.budget_s, write=_write_line)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="nightingale train session", description=__doc__)
    made.add_argument("--assets", type=Path, default=Path(".wren"), help="folder that the stage assets wrote")
    made.add_argument("--state", type=Path, default=Path("/dev/shm/wren"), help="corpus, states, logs")
    made.add_argument("--results", type=Path, default=Path("results"), help="folder of the results to return")
    made.add_argument("--plan-s", type=float, default=1560.0, help="seconds of the whole session")
    made.add_argument("--budget-s", type=float, default=585.0, help="seconds of this call")
    made.add_argument(
        "--from", dest="start_from", type=Path, help="results of an earlier session to continue from"
    )
    made.add_argument(
        "--hours", type=float, default=36.0, help="hours of speech that the teacher synthesizes"
    )
    made.add_argument(
        "--resume",
        action="store_true",
        help="continue the session of this machine with its settings; an error if there is none",
    )
    made.add_argument("--tokenizer-s", type=float, help="0 keeps the earlier session's tokenizer")
    made.add_argument(
        "--stages",
        nargs="+",
        default=[],
        help="run these stages of the plan alone; each needs those before it",
    )
    made.add_argument("--continue-t3", action="store_true", help="train only T3 and the flow, with --from")
    made.add_argument(
        "--continue-rendering",
        action="store_true",
        help="train only flow, vocoder and voice encoder, with --from and recordings of people",
    )
    made.add_argument(
        "--processes", type=int, default=0, help="with --continue-t3: processes of single-speaker, on CPUs"
    )
    made.add_argument("--device", default="cuda")
    made.add_argument(
        "--also",
        nargs=2,
        action="append",
        default=[],
        metavar=("STAGE", "ARGUMENTS"),
        help="further arguments of a stage, as one string",
    )
    made.add_argument("--plan", action="store_true", help="only print the schedule")
    made.add_argument("--supervise", action="store_true", help=argparse.SUPPRESS)
    return made


def create_state(settings: Settings) -> None:
    """Create the state folder, with what is kept of an earlier session."""
    state = Path(settings.state)
    for folder in (state, settings.corpus, settings.out, state / "logs", state / "marks"):
        folder.mkdir(parents=True, exist_ok=True)
    if packed := settings.earlier("s3gen.safetensors"):
        from nightingale_lab.train.export import split_s3gen

        split_s3gen(packed, state / SPLIT)
    kept = settings.earlier("tokenizer.safetensors")
    if "tokenizer" not in {task.name for task in plan(settings)} and kept:
        target = settings.out / kept.name
        target.write_bytes(kept.read_bytes())
        settings.done_marker("tokenizer").touch()
        (state / SENT).write_text(json.dumps({"tokenizer": _version(target)}), encoding="utf-8")
    (state / SETTINGS).write_text(json.dumps(asdict(settings)), encoding="utf-8")


def read_settings(state: Path) -> Settings:
    return Settings(**json.loads((state / SETTINGS).read_text(encoding="utf-8")))


def resume(state: Path) -> None:
    """Ensure that a supervisor runs unless all is done, and that it retries failed tasks."""
    assets = Path(read_settings(state).assets)
    for marker, names in ((TEACHER, TEACHER_FILES), (PEOPLE, PEOPLE_FILES)):
        if all(any(assets.rglob(name)) for name in names):
            (state / marker).touch()
    finished = state / FINISHED
    if finished.exists() and SessionStatus.read(state).failed:
        finished.unlink()
        (state / HEARTBEAT).unlink(missing_ok=True)
    if finished.exists():
        return
    if _alive(state):
        (state / RETRY).touch()
    else:
        detach(state)


def detach(state: Path) -> None:
    """Start the supervisor in a process session of its own, which outlives this call."""
    (state / HEARTBEAT).touch()
    with (state / "logs" / "supervisor.log").open("ab") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "nightingale_lab.train", "session", "--supervise", "--state", str(state)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    (state / PID).write_text(str(supervisor.pid), encoding="utf-8")


def monitor(state: Path, results: Path, *, budget_s: float, write: Callable[[str], None]) -> None:
    """Report progress and copy results until the session or the budget of this call ends."""
    started = copied = time.monotonic()
    reported, busy = started - REPORT_EVERY_S, started
    before = _sent(state)
    while (spent := time.monotonic() - started) < budget_s - LAST_COPY_S:
        if (state / FINISHED).exists():
            break
        if not _alive(state):
            write("the supervisor has died; call again to continue")
            break
        if _without_data(state):
            write("the stage data has failed, so there is nothing to train on; correct it and call again")
            break
        if any(row.state == "runs" for row in SessionStatus.read(state).rows.values()):
            busy = time.monotonic()
        if time.monotonic() - busy > IDLE_S:
            write("no stage runs; those that wait need a file that is not here, or a stage that failed")
            break
        if time.monotonic() - copied > COPY_EVERY_S:
            copy_results(state, results, before)
            copied = time.monotonic()
        if time.monotonic() - reported >= REPORT_EVERY_S:
            status = SessionStatus.read(state)
            write(f"{status.now_s:5.0f} s  {status.line()}")
            reported = time.monotonic()
        time.sleep(min(POLL_EVERY_S, max(0.01, budget_s - spent)))
    sent = copy_results(state, results, before)
    _store_sent(state, before, sent)
    left = [name for name, version in _versions(state).items() if (before | sent).get(name) != version]
    write(SessionStatus.read(state).table())
    write(f"sent: {', '.join(sent) or 'nothing new'}; still to send: {', '.join(left) or 'nothing'}")


def copy_results(state: Path, results: Path, before: dict[str, list[int]]) -> dict[str, list[int]]:
    """Pack the results that no earlier call has returned in this version; return the versions by name.

    Not everything may fit, so results that have waited longest come first.
    """
    from nightingale_lab.train.volumes import pack

    versions = _versions(state)
    files = [state / path for path in _results(state)]
    fresh = [f for f in files if f.is_file() and before.get(f.stem) != versions.get(f.stem)]
    priority = {name: place for place, name in enumerate(before)}
    fresh.sort(key=lambda file: priority.get(file.stem, -1))
    logs = sorted([*(state / "logs").glob("*.log"), *(state / "out").rglob("*.jsonl")])
    return {name: versions[name] for name in pack(fresh, logs, results, as_float16=AS_FLOAT16)}


def _sent(state: Path) -> dict[str, list[int]]:
    path = state / SENT
    known: dict[str, list[int]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return known


def _store_sent(state: Path, before: dict[str, list[int]], sent: dict[str, list[int]]) -> None:
    """Store what was sent, the latest last: it has the lowest priority in the next call."""
    kept = {name: version for name, version in before.items() if name not in sent}
    (state / SENT).write_text(json.dumps(kept | sent), encoding="utf-8")


def _versions(state: Path) -> dict[str, list[int]]:
    return {Path(p).stem: _version(state / p) for p in _results(state) if (state / p).is_file()}


def _results(state: Path) -> tuple[str, ...]:
    settings = read_settings(state)
    if settings.continue_rendering:
        return RENDERING_RESULTS
    return CONTINUED_RESULTS if settings.continue_t3 else RESULTS


def _without_data(state: Path) -> bool:
    data = SessionStatus.read(state).rows.get("data")
    failed = data is not None and data.state.startswith("failed")
    return failed and not any(state.glob(f"corpus/part*/{READY}"))


def _version(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_mtime_ns, stat.st_size]


def _alive(state: Path) -> bool:
    heartbeat, pid = state / HEARTBEAT, state / PID
    if pid.is_file():
        try:
            os.kill(int(pid.read_text(encoding="utf-8")), 0)
        except ProcessLookupError:
            return False
    return heartbeat.is_file() and time.time() - heartbeat.stat().st_mtime < STALE_S


def _write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
