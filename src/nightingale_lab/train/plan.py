"""What a session does when: every stage as a task with what it waits for and when it must be over.

All shares are of the session's seconds. Processes share one GPU evenly, so a task's work depends on how many
run beside it. The vocoder starts first and ends last, because it bounds everything; its last stretch, alone,
is on the flow's own mels.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nightingale_lab.train.corpus import READY
from nightingale_lab.train.stages import BANK, TOKENS
from nightingale_lab.train.vocoder_feed import DONE

LAST_S = 12.0
"""Kept at the end, for the last checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a session is asked to do; kept in its state folder, so that a later call goes on with the same."""

    assets: str
    state: str
    plan_s: float
    start_from: str | None = None
    """Folder of an earlier session's results."""
    hours: float = 36.0
    tokenizer_s: float | None = None
    """None: 160, or 0 where an earlier session's tokenizer is kept."""
    device: str = "cuda"
    load_s: float = 15.0
    """A stage's start before its first step."""
    options: dict[str, list[str]] = field(default_factory=dict)
    """More arguments for a stage."""

    @property
    def corpus(self) -> Path:
        return Path(self.state) / "corpus"

    @property
    def out(self) -> Path:
        return Path(self.state) / "out"

    def earlier(self, name: str) -> Path | None:
        """A file of the earlier session, wherever under its folder."""
        found = sorted(Path(self.start_from).rglob(name)) if self.start_from else []
        return found[0] if found else None

    def mark(self, task: str) -> Path:
        """There when the task is done."""
        return Path(self.state) / "marks" / task


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    name: str
    needs: tuple[Path, ...]
    ends_s: float
    """Since the session's start."""
    arguments: Callable[[float], list[str]]
    """Seconds it has from now -> arguments of the command line."""
    at_most_s: float = float("inf")
    product: Path | None = None
    """If this is there, the task counts as done even if it was killed or failed at last."""
    optional: bool = False
    """Counts as done however it ended."""


def plan(s: Settings) -> list[Task]:
    whole, ears = s.plan_s, "tokenizer.safetensors"
    teach_s = (0.0 if s.earlier(ears) else 160.0) if s.tokenizer_s is None else s.tokenizer_s
    first, done = s.corpus / "part00" / READY, s.corpus / DONE
    flow_ends_s = 0.80 * whole
    eager = ["--eager"] if s.device == "cpu" else []
    plain = [*eager, "--compile", "none"] if eager else []
    fed = ["--corpus", str(s.corpus), "--out", str(s.out), "--device", s.device]
    own = ["--out", str(s.out), "--device", s.device]

    def seconds(left: float) -> list[str]:
        return ["--budget-s", f"{max(1.0, left - s.load_s):.1f}"]

    def warm(name: str) -> list[str]:
        path = s.earlier(name)
        return ["--start-from", str(path)] if path else []

    def flow(left: float, then_s: float = 0.0) -> list[str]:
        """then_s: what a later call has beside this one's."""
        earlier = warm("flow.refine.safetensors")
        share, loads = 0.0 if earlier else 0.3, 2 if then_s else 1
        whole_s = left + then_s - loads * s.load_s
        match_s, refine_s = _once(s, "flow", [part * whole_s for part in (share, 1 - share)])
        times = ["--match-s", f"{match_s:.1f}", "--refine-s", f"{refine_s:.1f}"]
        return ["flow", *fed, *times, *eager, *(earlier or warm("flow.match.safetensors"))]

    def vocoder(left: float) -> list[str]:
        earlier = s.earlier("vocoder.safetensors")
        (whole_s,) = _once(s, "vocoder", [(_elapsed_s(earlier) if earlier else 0.0) + left - s.load_s])
        given = ["--bank", str(s.corpus), "--out", str(s.out / "vocoder"), "--device", s.device, "--resume"]
        if earlier:
            given += ["--resume-from", str(earlier.parent)]
        return ["vocoder", *given, *seconds(left), "--plan-s", f"{whole_s:.1f}", *plain]

    banks = [str(s.out / BANK), *([str(path)] if (path := s.earlier(BANK)) and not teach_s else [])]
    assets = ["--assets", s.assets]
    spoken = ["--out", str(s.corpus), "--device", s.device, "--hours", str(s.hours)]
    tasks = [
        Task(
            name="data", needs=(), ends_s=0.30 * whole,
            arguments=lambda left: ["data", *spoken, *assets, *seconds(left)],
        ),
        Task(
            name="tokenizer", needs=(first,), ends_s=0.40 * whole, at_most_s=teach_s + s.load_s,
            product=s.out / ears,
            arguments=lambda left: ["tokenizer", *fed, *seconds(left), *eager, *warm(ears)],
        ),
        Task(
            name="vocoder", needs=(first,), ends_s=whole - LAST_S, arguments=vocoder,
        ),
        Task(
            name="tokens", needs=(first, s.mark("tokenizer")), ends_s=0.45 * whole, product=s.out / BANK,
            arguments=lambda left: ["tokens", *fed, *seconds(left)],
        ),
        Task(
            name="voice-encoder", needs=(done,), ends_s=0.6 * whole, at_most_s=0.1 * whole,
            arguments=lambda left: ["voice-encoder", *fed, *assets, *seconds(left)],
        ),
        Task(
            name="t3", needs=(s.mark("tokens"),), ends_s=0.74 * whole,
            arguments=lambda left: [
                "t3", *own, *assets, *seconds(left), "--bank", *banks, *eager, *warm("t3.safetensors"),
            ],
        ),
        Task(
            # A kept tokenizer knows the first part long before the last one is spoken.
            name="flow-early", needs=(s.corpus / "part00" / TOKENS,), ends_s=0.26 * whole, optional=True,
            arguments=lambda left: [*flow(left, flow_ends_s - 0.26 * whole), *seconds(left)],
        ),
        Task(
            name="flow", needs=(s.mark("tokens"), *([] if teach_s else [s.mark("flow-early")])),
            ends_s=flow_ends_s, arguments=flow, product=s.out / "flow.refine.safetensors",
        ),
        Task(
            name="mels", needs=(s.mark("flow"),), ends_s=0.84 * whole,
            arguments=lambda _: ["mels", *fed],
        ),
    ]  # fmt: skip
    kept = {"flow-early"} if teach_s else {"tokenizer"}
    if s.earlier("voice_encoder.safetensors"):
        kept.add("voice-encoder")
    return [task for task in tasks if task.name not in kept]


def table(tasks: list[Task]) -> str:
    """The plan, for people."""
    rows = [f"{'stage':<15}{'ends at':>9}{'at most':>9}  waits for"]
    for task in tasks:
        most = "" if task.at_most_s == float("inf") else f"{task.at_most_s:.0f} s"
        needs = ", ".join("/".join(path.parts[-2:]) for path in task.needs) or "nothing"
        rows.append(f"{task.name:<15}{task.ends_s:>7.0f} s{most:>9}  {needs}")
    return "\n".join(rows)


def _once(settings: Settings, name: str, values: list[float]) -> list[float]:
    """The values of the first asking: a stage that is started again must not plan anew."""
    path = Path(settings.state) / f"{name}.plan.json"
    if not path.is_file():
        path.write_text(json.dumps(values), encoding="utf-8")
    kept: list[float] = json.loads(path.read_text(encoding="utf-8"))
    return kept


def _elapsed_s(vocoder: Path) -> float:
    from safetensors import safe_open

    with safe_open(vocoder, framework="pt") as file:
        return float((file.metadata() or {}).get("elapsed_s", 0.0))
