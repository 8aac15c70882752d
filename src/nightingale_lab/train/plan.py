"""The schedule of a session: every stage is a task with dependencies and a deadline.

All shares are of the session's seconds. Processes share one GPU evenly, so the progress of a task depends on the
number of others. The vocoder starts first and ends last, because it needs the most time; at the end it trains
alone on the flow's mels.
"""

from __future__ import annotations

from pathlib import Path

from nightingale.errors import ConfigError
from nightingale_lab.train.corpus import READY
from nightingale_lab.train.plan_rendering import plan_continuing_rendering
from nightingale_lab.train.session_tasks import FLOW_OPTIONS, LAST_S, TEACHER, Settings, Task, elapsed_s, once
from nightingale_lab.train.stages import BANK, TOKENS
from nightingale_lab.train.vocoder_data import DONE

EARLY_PARTS = 2
"""Parts of the corpus with which T3 begins, in a session that continues it."""
T3_OPTIONS = ("--guidance", "0.1", "--peak-lr", "1e-3")


def plan(s: Settings) -> list[Task]:
    """Return the tasks of a session; refuse stages that its plan does not have."""
    if s.continue_rendering:
        tasks = plan_continuing_rendering(s)
    else:
        tasks = plan_continuing_t3(s) if s.continue_t3 else plan_all_stages(s)
    names = [task.name for task in tasks]
    if unknown := [stage for stage in s.stages if stage not in names]:
        raise ConfigError(
            "the plan of this session does not have every stage of --stages",
            got=", ".join(unknown),
            allowed=", ".join(names),
            fix="Choose some of these, or leave --stages out to run all.",
        )
    return [task for task in tasks if not s.stages or task.name in s.stages]


def plan_all_stages(s: Settings) -> list[Task]:
    whole, tokenizer = s.plan_s, "tokenizer.safetensors"
    tokenizer_s = (0.0 if s.earlier(tokenizer) else 160.0) if s.tokenizer_s is None else s.tokenizer_s
    first, done = s.corpus / "part00" / READY, s.corpus / DONE
    flow_ends_s = 0.80 * whole
    eager = ["--eager"] if s.device == "cpu" else []
    corpus = ["--corpus", str(s.corpus), "--out", str(s.out), "--device", s.device]
    common = ["--out", str(s.out), "--device", s.device]

    def seconds(left: float) -> list[str]:
        return ["--budget-s", f"{max(1.0, left - s.load_s):.1f}"]

    def start_from(name: str) -> list[str]:
        path = s.earlier(name)
        return ["--start-from", str(path)] if path else []

    def flow(left: float, then_s: float = 0.0) -> list[str]:
        """then_s: seconds of a later call."""
        earlier = start_from("flow.refine.safetensors")
        share, loads = 0.0 if earlier else 0.3, 2 if then_s else 1
        whole_s = left + then_s - loads * s.load_s
        match_s, refine_s = once(s, "flow", [part * whole_s for part in (share, 1 - share)])
        times = ["--match-s", f"{match_s:.1f}", "--refine-s", f"{refine_s:.1f}"]
        return ["flow", *corpus, *assets, *times, *eager, *(earlier or start_from("flow.match.safetensors"))]

    def vocoder(left: float) -> list[str]:
        earlier = s.earlier("vocoder.safetensors")
        (whole_s,) = once(s, "vocoder", [(elapsed_s(earlier) if earlier else 0.0) + left - s.load_s])
        arguments = [
            "--bank",
            str(s.corpus),
            "--out",
            str(s.out / "vocoder"),
            "--device",
            s.device,
            "--resume",
        ]
        if earlier:
            arguments += ["--resume-from", str(earlier.parent)]
        return ["vocoder", *arguments, *seconds(left), "--plan-s", f"{whole_s:.1f}", *eager]

    banks = [str(s.out / BANK), *([str(path)] if (path := s.earlier(BANK)) and not tokenizer_s else [])]
    assets = ["--assets", s.assets]
    synthesis = ["--out", str(s.corpus), "--device", s.device, "--hours", str(s.hours)]
    tasks = [
        Task(
            name="data", needs=(), ends_s=0.30 * whole,
            arguments=lambda left: ["data", *synthesis, *assets, *seconds(left)],
        ),
        Task(
            name="tokenizer", needs=(first,), ends_s=0.40 * whole, at_most_s=tokenizer_s + s.load_s,
            output=s.out / tokenizer,
            arguments=lambda left: ["tokenizer", *corpus, *seconds(left), *eager, *start_from(tokenizer)],
        ),
        Task(
            name="vocoder", needs=(first,), ends_s=whole - LAST_S, arguments=vocoder,
        ),
        Task(
            name="tokens", needs=(first, s.done_marker("tokenizer")), ends_s=0.45 * whole, output=s.out / BANK,
            arguments=lambda left: ["tokens", *corpus, *seconds(left)],
        ),
        Task(
            name="voice-encoder", needs=(done,), ends_s=0.6 * whole, at_most_s=0.1 * whole,
            arguments=lambda left: ["voice-encoder", *corpus, *assets, *seconds(left)],
        ),
        Task(
            name="t3", needs=(s.done_marker("tokens"),), ends_s=0.74 * whole,
            arguments=lambda left: [
                "t3", *common, *assets, *seconds(left), "--bank", *banks, *eager, *start_from("t3.safetensors"),
            ],
        ),
        Task(
            # With a kept tokenizer, the tokens of the first part are there long before the last part.
            name="flow-early", needs=(s.corpus / "part00" / TOKENS,), ends_s=0.26 * whole, optional=True,
            arguments=lambda left: [*flow(left, flow_ends_s - 0.26 * whole), *seconds(left)],
        ),
        Task(
            name="flow", needs=(s.done_marker("tokens"), *([] if tokenizer_s else [s.done_marker("flow-early")])),
            ends_s=flow_ends_s, arguments=flow, output=s.out / "flow.refine.safetensors",
        ),
        Task(
            name="mels", needs=(s.done_marker("flow"),), ends_s=0.84 * whole,
            arguments=lambda _: ["mels", *corpus],
        ),
    ]  # fmt: skip
    kept = {"flow-early"} if tokenizer_s else {"tokenizer"}
    if s.earlier("voice_encoder.safetensors"):
        kept.add("voice-encoder")
    return [task for task in tasks if task.name not in kept]


def plan_continuing_t3(s: Settings) -> list[Task]:
    """Return the schedule of a session that trains T3 further.

    Both teachers synthesize at first, T3 begins on the first parts and goes on with all of them, and the flow is
    trained beside it for a while. With `hours=0`, T3 is trained on the stored banks alone.
    """
    whole = s.plan_s
    synthesis_s, flow_s = min(385.0, 0.32 * whole), min(780.0, 0.57 * whole)
    tokens_s, t3_s = synthesis_s + min(25.0, 0.02 * whole), whole - LAST_S
    eager = ["--eager"] if s.device == "cpu" else []
    corpus = ["--corpus", str(s.corpus), "--out", str(s.out), "--device", s.device]
    common = ["--out", str(s.out), "--device", s.device, "--assets", s.assets]

    def seconds(left: float) -> list[str]:
        return ["--budget-s", f"{max(1.0, left - s.load_s):.1f}"]

    def start_from(name: str) -> list[str]:
        path = s.earlier(name)
        return ["--start-from", str(path)] if path else []

    def banks() -> list[str]:
        stored = sorted(Path(s.start_from).rglob("compact_bank*.safetensors")) if s.start_from else []
        made = [s.out / BANK, *sorted(s.out.glob("single_speaker*.safetensors"))]
        return ["--bank", *(str(path) for path in [*made, *stored] if path.is_file())]

    def t3(left: float, then_s: float = 0.0) -> list[str]:
        """then_s: seconds of a later call, which continues the same learning rate schedule."""
        (plan_s,) = once(s, "t3", [left + then_s - (2 if then_s else 1) * s.load_s])
        compact = ["--compact-bank"] if s.hours and not then_s else []
        times = [*seconds(left), "--plan-s", f"{plan_s:.1f}"]
        return ["t3", *common, *times, *banks(), *eager, *T3_OPTIONS, *compact, *start_from("t3.safetensors")]

    def flow(left: float) -> list[str]:
        (refine_s,) = once(s, "flow", [left - s.load_s])
        times = ["--match-s", "0", "--refine-s", f"{refine_s:.1f}"]
        given = ["--assets", s.assets, *FLOW_OPTIONS, *start_from("flow.refine.safetensors")]
        return ["flow", *corpus, *times, *eager, *given]

    def single_speaker(number: int) -> Task:
        hibari = next(Path(s.assets).rglob("hibari/assets"), Path(s.assets) / "hibari/hibari/assets").parents[
            1
        ]
        files = {name: str(s.earlier(f"{name}.safetensors")) for name in ("tokenizer", "voices")}
        arguments = [
            "--out", str(s.out), "--assets", s.assets, "--shard", str(number), "--shards", str(s.processes),
            "--hibari", str(hibari), "--tokenizer", files["tokenizer"], "--voices", files["voices"],
        ]  # fmt: skip
        return Task(
            name=f"single-speaker{number}", needs=(), ends_s=synthesis_s, optional=True,
            arguments=lambda left: ["single-speaker", *arguments, *seconds(left)],
        )  # fmt: skip

    if not s.hours:
        return [Task(name="t3", needs=(), ends_s=t3_s, output=s.out / "t3.safetensors", arguments=t3)]
    single = [single_speaker(number) for number in range(s.processes)]
    synthesis = ["--out", str(s.corpus), "--device", s.device, "--assets", s.assets, "--hours", str(s.hours)]
    before_t3 = ["tokens", "t3-early", *(task.name for task in single)]
    return [
        Task(
            name="data", needs=(Path(s.state) / TEACHER,), ends_s=synthesis_s,
            arguments=lambda left: ["data", *synthesis, *seconds(left)],
        ),
        *single,
        Task(
            name="tokens", needs=(s.corpus / "part00" / READY,), ends_s=tokens_s, output=s.out / BANK,
            arguments=lambda left: ["tokens", *corpus, *seconds(left)],
        ),
        Task(
            name="t3-early", needs=(s.corpus / f"part{EARLY_PARTS - 1:02d}" / TOKENS,), ends_s=tokens_s,
            optional=True, arguments=lambda left: t3(left, t3_s - tokens_s),
        ),
        Task(
            name="t3", needs=tuple(map(s.done_marker, before_t3)), ends_s=t3_s, arguments=t3,
            output=s.out / "t3.safetensors",
        ),
        Task(
            name="flow", needs=(s.done_marker("tokens"),), ends_s=flow_s, arguments=flow,
            output=s.out / "flow.refine.safetensors",
        ),
    ]  # fmt: skip


def table(tasks: list[Task]) -> str:
    """Format the plan as a table."""
    rows = [f"{'stage':<15}{'ends at':>9}{'at most':>9}  waits for"]
    for task in tasks:
        limit = "" if task.at_most_s == float("inf") else f"{task.at_most_s:.0f} s"
        needs = ", ".join("/".join(path.parts[-2:]) for path in task.needs) or "nothing"
        rows.append(f"{task.name:<15}{task.ends_s:>7.0f} s{limit:>9}  {needs}")
    return "\n".join(rows)
