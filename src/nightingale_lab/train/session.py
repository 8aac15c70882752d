"""Stage `session`: everything, in parallel where it can be, within a deadline.

    python -m nightingale_lab.train session --assets DIR --results DIR --plan-s 1560 --budget-s 585

The work is done by processes of their own that outlive this call; the call watches them, copies results every
minute, and ends after its budget. The same command again goes on watching, or, where the processes were
killed, starts them again from their last states. So a machine that gives ten minutes a call is used without a
gap. What one call has returned, the next does not send again unless it changed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from nightingale_lab.train.plan import Settings, plan, table
from nightingale_lab.train.supervisor import BEAT, FINISHED, RETRY, Board, process, supervise

RESULTS = (
    "out/vocoder/vocoder.safetensors",
    "out/voices.safetensors",
    "out/voice_encoder.safetensors",
    "out/t3.safetensors",
    "out/flow.refine.safetensors",
    "out/tokenizer.safetensors",
    "out/bank.safetensors",
    "out/vocoder/critics.safetensors",
    "out/flow.match.safetensors",
)
"""Most wanted first."""
HALVED = frozenset({"vocoder"})
SETTINGS, SENT = "settings.json", "sent.json"
COPY_EVERY_S, LOOK_EVERY_S, TELL_EVERY_S = 60.0, 1.0, 15.0
LAST_COPY_S = 12.0
"""The last copy of a call starts this long before its end."""
STALE_S = 60.0
"""Without a sign from the supervisor for so long, it is gone. Its start alone may take 20."""


def main(arguments: list[str] | None = None) -> None:
    args = parser().parse_args(arguments)
    if args.supervise:
        settings = read_settings(args.state)
        supervise(settings, plan(settings), process)
        return
    asked = Settings(
        assets=str(args.assets.resolve()),
        state=str(args.state.resolve()),
        plan_s=args.plan_s,
        start_from=str(args.start_from.resolve()) if args.start_from else None,
        hours=args.hours,
        tokenizer_s=args.tokenizer_s,
        device=args.device,
        options={stage: shlex.split(more) for stage, more in args.also},
    )
    if args.plan:
        sys.stdout.write(table(plan(asked)) + "\n")
        return
    if not (args.state / SETTINGS).is_file():
        begin(asked)
    resume(args.state)
    watch(args.state, args.results, budget_s=args.budget_s, say=_say)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="nightingale train session", description=__doc__)
    made.add_argument("--assets", type=Path, default=Path(".wren"), help="folder that the stage assets wrote")
    made.add_argument("--state", type=Path, default=Path("/dev/shm/wren"), help="corpus, states, logs")
    made.add_argument("--results", type=Path, default=Path("results"), help="what comes back")
    made.add_argument("--plan-s", type=float, default=1560.0, help="seconds of the whole session")
    made.add_argument("--budget-s", type=float, default=585.0, help="seconds of this call")
    made.add_argument(
        "--from", dest="start_from", type=Path, help="results of an earlier session, to go on from"
    )
    made.add_argument("--hours", type=float, default=36.0, help="of speech that the teacher makes")
    made.add_argument("--tokenizer-s", type=float, help="0 keeps the earlier session's tokenizer")
    made.add_argument("--device", default="cuda")
    made.add_argument(
        "--also",
        nargs=2,
        action="append",
        default=[],
        metavar=("STAGE", "ARGUMENTS"),
        help="more arguments for a stage, as one string",
    )
    made.add_argument("--plan", action="store_true", help="only say what would be done when")
    made.add_argument("--supervise", action="store_true", help=argparse.SUPPRESS)
    return made


def begin(settings: Settings) -> None:
    """A fresh state folder; what is kept of an earlier session is put in its place."""
    state = Path(settings.state)
    for folder in (state, settings.corpus, settings.out, state / "logs", state / "marks"):
        folder.mkdir(parents=True, exist_ok=True)
    kept = settings.earlier("tokenizer.safetensors")
    if "tokenizer" not in {task.name for task in plan(settings)} and kept:
        target = settings.out / kept.name
        target.write_bytes(kept.read_bytes())
        settings.mark("tokenizer").touch()
        (state / SENT).write_text(json.dumps({"tokenizer": _version(target)}), encoding="utf-8")
    (state / SETTINGS).write_text(json.dumps(asdict(settings)), encoding="utf-8")


def read_settings(state: Path) -> Settings:
    return Settings(**json.loads((state / SETTINGS).read_text(encoding="utf-8")))


def resume(state: Path) -> None:
    """See that a supervisor runs unless all is done, and that it tries again what failed."""
    finished = state / FINISHED
    if finished.exists() and Board.read(state).failed:
        finished.unlink()
        (state / BEAT).unlink(missing_ok=True)
    if finished.exists():
        return
    if _alive(state):
        (state / RETRY).touch()
    else:
        detach(state)


def detach(state: Path) -> None:
    """Start the supervisor in a process session of its own: it stays when this call ends."""
    (state / BEAT).touch()
    with (state / "logs" / "supervisor.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "nightingale_lab.train", "session", "--supervise", "--state", str(state)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def watch(state: Path, results: Path, *, budget_s: float, say: Callable[[str], None]) -> None:
    """Tell what happens and copy results, until the session or this call's seconds are over."""
    begun = copied = time.monotonic()
    told = begun - TELL_EVERY_S
    before = _sent(state)
    while (spent := time.monotonic() - begun) < budget_s - LAST_COPY_S:
        if (state / FINISHED).exists():
            break
        if not _alive(state):
            say("the supervisor is gone; call again to go on")
            break
        if time.monotonic() - copied > COPY_EVERY_S:
            copy_results(state, results, before)
            copied = time.monotonic()
        if time.monotonic() - told >= TELL_EVERY_S:
            board = Board.read(state)
            say(f"{board.now_s:5.0f} s  {board.line()}")
            told = time.monotonic()
        time.sleep(min(LOOK_EVERY_S, max(0.01, budget_s - spent)))
    sent = copy_results(state, results, before)
    _remember(state, before, sent)
    left = [name for name, version in _versions(state).items() if (before | sent).get(name) != version]
    say(Board.read(state).table())
    say(f"sent: {', '.join(sent) or 'nothing new'}; still to send: {', '.join(left) or 'nothing'}")


def copy_results(state: Path, results: Path, before: dict[str, list[int]]) -> dict[str, list[int]]:
    """Pack what no earlier call has returned in this version; name -> version of what was packed.

    What has waited longest comes first, for not everything may fit.
    """
    from nightingale_lab.train.volumes import pack

    versions = _versions(state)
    files = [state / path for path in RESULTS]
    fresh = [f for f in files if f.is_file() and before.get(f.stem) != versions.get(f.stem)]
    turn = {name: place for place, name in enumerate(before)}
    fresh.sort(key=lambda file: turn.get(file.stem, -1))
    logs = sorted([*(state / "logs").glob("*.log"), *(state / "out").rglob("*.jsonl")])
    return {name: versions[name] for name in pack(fresh, logs, results, halved=HALVED)}


def _sent(state: Path) -> dict[str, list[int]]:
    path = state / SENT
    known: dict[str, list[int]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return known


def _remember(state: Path, before: dict[str, list[int]], sent: dict[str, list[int]]) -> None:
    """What was sent last stands last, and has its turn last."""
    kept = {name: version for name, version in before.items() if name not in sent}
    (state / SENT).write_text(json.dumps(kept | sent), encoding="utf-8")


def _versions(state: Path) -> dict[str, list[int]]:
    return {Path(p).stem: _version(state / p) for p in RESULTS if (state / p).is_file()}


def _version(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_mtime_ns, stat.st_size]


def _alive(state: Path) -> bool:
    beat = state / BEAT
    return beat.is_file() and time.time() - beat.stat().st_mtime < STALE_S


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
