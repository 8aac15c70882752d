"""The schedule of a session: every stage is a task with dependencies and a deadline.

All shares are of the session's seconds. Processes share one GPU evenly, so the progress of a task depends on the
number of others. The vocoder starts first and ends last, because it needs the most time; at the end it trains
alone on the flow's mels.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nightingale.errors import ConfigError
from nightingale.models.chatterbox.presets import PRESETS
from nightingale_lab.train.corpus import READY
from nightingale_lab.train.stages import BANK, TOKENS
from nightingale_lab.train.vocoder_data import DONE

LAST_S = 12.0
"""Reserved at the end for the last checkpoints."""
SPLIT = "split"
"""Folder of the networks of a packed wren's s3gen file."""
TEACHER = "teacher"
"""This file exists when all files of Kokoro are there: they may arrive after the session has begun."""
PEOPLE = "people"
"""This file exists when the recordings of people and the voice encoder's teacher are there."""
EARLY_PARTS = 2
"""Parts of the corpus with which T3 begins, in a session that continues it."""
T3_OPTIONS = ("--guidance", "0.1", "--peak-lr", "1e-3")
FLOW_OPTIONS = ("--parts", "4", "--peak-lr", "4e-4")
ENCODER_OPTIONS = ("--parts", "1", "--keep-voices")
DATA_OPTIONS = ("--first-hours", "4", "--part-hours", "5")
VOCODER_OPTIONS = ("--mel-only-share", "0", "--predicted-f0-share", "0", "--lr", "2e-4", "--f0-lr", "2e-4")
SHARPENING = str(PRESETS["wren"].hift.sharpening)
NEW_DISCRIMINATORS_OPTIONS = ("--discriminator-share", "0.07", "--sharpening", SHARPENING)
"""For a packed generator: its discriminators are new, and it begins with the sharpening that the engine has so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a session, stored in its state folder for later calls."""

    assets: str
    state: str
    plan_s: float
    start_from: str | None = None
    """Folder of an earlier session's results."""
    hours: float = 36.0
    tokenizer_s: float | None = None
    """Seconds of tokenizer training. None: 160, or 0 where an earlier session's tokenizer is kept."""
    device: str = "cuda"
    load_s: float = 15.0
    """Seconds that a stage needs to start."""
    continue_t3: bool = False
    """Train only T3, the flow and the draft head further, from an earlier session."""
    continue_rendering: bool = False
    """Train only the flow, the vocoder and the voice encoder further, with recordings of people."""
    processes: int = 0
    """Processes of the stage single-speaker, in a session that continues T3."""
    options: dict[str, list[str]] = field(default_factory=dict)
    """Further arguments of each stage."""
    stages: list[str] = field(default_factory=list)
    """Stages that run; none: all of the plan."""

    @property
    def corpus(self) -> Path:
        return Path(self.state) / "corpus"

    @property
    def out(self) -> Path:
        return Path(self.state) / "out"

    def earlier(self, name: str) -> Path | None:
        """Return a file of the earlier session, from anywhere under its folder or split from its s3gen file."""
        folders = [Path(self.start_from), Path(self.state) / SPLIT] if self.start_from else []
        return next((path for folder in folders for path in sorted(folder.rglob(name))), None)

    def done_marker(self, task: str) -> Path:
        """Return the file that exists when the task is done."""
        return Path(self.state) / "marks" / task


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    name: str
    needs: tuple[Path, ...]
    ends_s: float
    """Deadline in seconds since the session's start."""
    arguments: Callable[[float], list[str]]
    """Maps the seconds that are left to command-line arguments."""
    at_most_s: float = float("inf")
    output: Path | None = None
    """If this file exists, the task counts as done even if it was killed or failed."""
    optional: bool = False
    """The task counts as done even without a result."""


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
    uncompiled = [*eager, "--compile", "none"] if eager else []
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
        match_s, refine_s = _once(s, "flow", [part * whole_s for part in (share, 1 - share)])
        times = ["--match-s", f"{match_s:.1f}", "--refine-s", f"{refine_s:.1f}"]
        return ["flow", *corpus, *assets, *times, *eager, *(earlier or start_from("flow.match.safetensors"))]

    def vocoder(left: float) -> list[str]:
        earlier = s.earlier("vocoder.safetensors")
        (whole_s,) = _once(s, "vocoder", [(_elapsed_s(earlier) if earlier else 0.0) + left - s.load_s])
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
        return ["vocoder", *arguments, *seconds(left), "--plan-s", f"{whole_s:.1f}", *uncompiled]

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
    """Return the schedule of a session that trains T3 further, then its draft head.

    Both teachers synthesize at first, T3 begins on the first parts and goes on with all of them, and the flow is
    trained beside it for a while. With `hours=0`, T3 and the draft head are trained on the stored banks alone.
    """
    whole = s.plan_s
    synthesis_s, flow_s = min(385.0, 0.32 * whole), min(780.0, 0.57 * whole)
    tokens_s, t3_s = synthesis_s + min(25.0, 0.02 * whole), whole - LAST_S - min(95.0, 0.1 * whole)
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
        (plan_s,) = _once(s, "t3", [left + then_s - (2 if then_s else 1) * s.load_s])
        compact = ["--compact-bank"] if s.hours and not then_s else []
        times = [*seconds(left), "--plan-s", f"{plan_s:.1f}"]
        return ["t3", *common, *times, *banks(), *eager, *T3_OPTIONS, *compact, *start_from("t3.safetensors")]

    def draft(left: float) -> list[str]:
        return ["draft", *common, *seconds(left), *banks(), *eager, *start_from("draft_head.safetensors")]

    def flow(left: float) -> list[str]:
        (refine_s,) = _once(s, "flow", [left - s.load_s])
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

    last = Task(name="draft", needs=(s.done_marker("t3"),), ends_s=whole - LAST_S, arguments=draft)
    if not s.hours:
        return [Task(name="t3", needs=(), ends_s=t3_s, output=s.out / "t3.safetensors", arguments=t3), last]
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
        last,
    ]  # fmt: skip


def plan_continuing_rendering(s: Settings) -> list[Task]:
    """Return the schedule of a session that trains flow, vocoder and voice encoder further, on people too.

    The vocoder begins on the mels of the flow that there is, with new discriminators if there are no earlier ones, and
    goes on with those of the trained flow, or of the whole corpus where the flow is not trained. Without the stage
    `mels-early` it waits for the trained flow, which then has the GPU to itself. Tokenizer and T3 are kept.
    """
    whole, tokenizer = s.plan_s, "tokenizer.safetensors"
    names = ("flow", "vocoder", "mels-early", "converted")
    flow_is_trained, vocoder_is_trained, early, converts = (not s.stages or n in s.stages for n in names)
    flow_s, encoder_s = 0.8 * whole if vocoder_is_trained else whole - LAST_S, 0.42 * whole
    eager = ["--eager"] if s.device == "cpu" else []
    uncompiled = [*eager, "--compile", "none"] if eager else []
    corpus = ["--corpus", str(s.corpus), "--out", str(s.out), "--device", s.device]
    assets = ["--assets", s.assets]
    people = s.done_marker("human")
    first_mels = s.done_marker("mels-early" if early else "mels")
    vocoder_weights = str(Path(s.state) / SPLIT / "vocoder.safetensors")
    earlier_flow = ["--start-from", str(s.earlier("flow.refine.safetensors"))]

    def seconds(left: float) -> list[str]:
        return ["--budget-s", f"{max(1.0, left - s.load_s):.1f}"]

    def flow(left: float) -> list[str]:
        (refine_s,) = _once(s, "flow", [left - s.load_s])
        times = ["--match-s", "0", "--refine-s", f"{refine_s:.1f}"]
        judged = ["--pitch-from", vocoder_weights]
        return ["flow", *corpus, *assets, *times, *eager, *FLOW_OPTIONS, *earlier_flow, *judged]

    def vocoder(left: float) -> list[str]:
        discriminators = s.earlier("discriminators.safetensors")  # beside the generator of an earlier session
        folder = discriminators.parent if discriminators else Path(s.state) / SPLIT
        new = () if discriminators else NEW_DISCRIMINATORS_OPTIONS
        before_s = _elapsed_s(folder / "vocoder.safetensors") if discriminators else 0.0
        (whole_s,) = _once(s, "vocoder", [before_s + left - s.load_s])
        given = ["--bank", str(s.corpus), "--out", str(s.out / "vocoder"), "--device", s.device, "--resume"]
        generator = ["--resume-from", str(folder), *VOCODER_OPTIONS, *new]
        return ["vocoder", *given, *generator, *seconds(left), "--plan-s", f"{whole_s:.1f}", *uncompiled]

    synthesis = ["--out", str(s.corpus), "--device", s.device, *assets]
    synthesis += ["--hours", str(s.hours), *DATA_OPTIONS]
    return [
        Task(
            name="human", needs=(Path(s.state) / PEOPLE,), ends_s=0.4 * whole,
            arguments=lambda _: ["human", *corpus, *assets],
        ),
        Task(
            name="data", needs=(Path(s.state) / TEACHER,), ends_s=0.3 * whole,
            arguments=lambda left: ["data", *synthesis, *seconds(left)],
        ),
        Task(
            name="tokens", needs=(s.corpus / "part00" / READY, s.out / tokenizer), ends_s=0.35 * whole,
            output=s.out / BANK, arguments=lambda left: ["tokens", *corpus, *seconds(left)],
        ),
        Task(
            name="voice-encoder", needs=(people, s.corpus / "part00" / READY), ends_s=encoder_s,
            output=s.out / "voice_encoder.safetensors",
            arguments=lambda left: ["voice-encoder", *corpus, *assets, *ENCODER_OPTIONS, *seconds(left)],
        ),
        Task(
            name="mels-early", needs=(people, s.corpus / "part00" / TOKENS), ends_s=0.5 * whole,
            arguments=lambda _: ["mels", *corpus, *earlier_flow],
        ),
        Task(name="vocoder", needs=(first_mels,), ends_s=whole - LAST_S, arguments=vocoder),
        Task(
            name="converted", needs=(people, s.done_marker("tokens"), s.out / tokenizer), ends_s=0.5 * whole,
            arguments=lambda _: ["converted", *corpus, *earlier_flow, "--vocoder", vocoder_weights],
        ),
        Task(
            name="flow", needs=(people, s.done_marker("converted" if converts else "tokens")),
            ends_s=flow_s, arguments=flow, output=s.out / "flow.refine.safetensors",
        ),
        Task(
            name="mels", ends_s=flow_s + 0.08 * whole,
            needs=(s.done_marker("flow" if flow_is_trained else "tokens"), *((first_mels,) if early else ())),
            arguments=lambda _: ["mels", *corpus, *(["--parts", "2"] if flow_is_trained else earlier_flow)],
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


def _once(settings: Settings, name: str, values: list[float]) -> list[float]:
    """Store the values of the first call and return them in later ones: a restarted stage keeps its plan."""
    path = Path(settings.state) / f"{name}.plan.json"
    if not path.is_file():
        path.write_text(json.dumps(values), encoding="utf-8")
    kept: list[float] = json.loads(path.read_text(encoding="utf-8"))
    return kept


def _elapsed_s(vocoder: Path) -> float:
    from safetensors import safe_open

    with safe_open(vocoder, framework="pt") as file:
        return float((file.metadata() or {}).get("elapsed_s", 0.0))
