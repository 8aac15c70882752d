"""The schedule of a session that trains flow, vocoder, voice encoder and the tokenizer further, on people too.

T3 is trained beside them if `--stages` names it.
"""

from __future__ import annotations

from pathlib import Path

from nightingale_lab.train.corpus import READY
from nightingale_lab.train.session_tasks import (
    FLOW_OPTIONS,
    LAST_S,
    PEOPLE,
    TEACHER,
    Settings,
    Task,
    elapsed_s,
    once,
)
from nightingale_lab.train.stages import BANK, TOKENS

ENCODER_OPTIONS = ("--parts", "1", "--keep-voices")
DATA_OPTIONS = ("--first-hours", "4", "--part-hours", "5")
VOCODER_OPTIONS = ("--mel-only-share", "0", "--predicted-f0-share", "0", "--lr", "2e-4", "--f0-lr", "2e-4")
FINE_TUNING_OPTIONS = ("--guidance", "0.1", "--peak-lr", "2e-4")
"""T3 keeps what it has learned from more speech than this session has."""
NEW_DISCRIMINATORS_OPTIONS = ("--discriminator-share", "0.07")
"""For a packed generator: its discriminators are new."""


def plan_continuing_rendering(s: Settings) -> list[Task]:
    """Return the schedule of a session that trains flow, vocoder and voice encoder further, on people too.

    The vocoder begins on the mels of the flow that there is, with new discriminators if there are no earlier ones, and
    goes on with those of the trained flow, or of the whole corpus where the flow is not trained. Without the stage
    `mels-early` it waits for the trained flow, which then has the GPU to itself. The tokenizer is only trained to
    read people, too. T3 is kept, unless `--stages` has `t3`: then it is fine-tuned on Kokoro's speech.
    """
    whole, tokenizer = s.plan_s, "tokenizer.safetensors"
    names = ("flow", "vocoder", "mels-early", "converted", "tokenizer-people")
    flow_is_trained, vocoder_is_trained, early, converts, reads_people = (
        not s.stages or name in s.stages for name in names
    )
    flow_s, encoder_s = 0.8 * whole if vocoder_is_trained else whole - LAST_S, 0.42 * whole
    eager = ["--eager"] if s.device == "cpu" else []
    corpus = ["--corpus", str(s.corpus), "--out", str(s.out), "--device", s.device]
    assets = ["--assets", s.assets]
    common = ["--out", str(s.out), "--device", s.device, *assets]
    human = s.done_marker("human")
    # What is made from people's tokens waits for the tokenizer that reads people.
    people = s.done_marker("tokenizer-people") if reads_people else human
    first_mels = s.done_marker("mels-early" if early else "mels")
    vocoder_weights = str(s.earlier("vocoder.safetensors"))
    earlier_flow = ["--start-from", str(s.earlier("flow.refine.safetensors"))]

    def seconds(left: float) -> list[str]:
        return ["--budget-s", f"{max(1.0, left - s.load_s):.1f}"]

    def flow(left: float) -> list[str]:
        (refine_s,) = once(s, "flow", [left - s.load_s])
        times = ["--match-s", "0", "--refine-s", f"{refine_s:.1f}"]
        judged = ["--pitch-from", vocoder_weights]
        return ["flow", *corpus, *assets, *times, *eager, *FLOW_OPTIONS, *earlier_flow, *judged]

    def vocoder(left: float) -> list[str]:
        weights = Path(vocoder_weights)
        continued = (weights.parent / "discriminators.safetensors").is_file()
        new = () if continued else NEW_DISCRIMINATORS_OPTIONS
        before_s = elapsed_s(weights) if continued else 0.0
        (whole_s,) = once(s, "vocoder", [before_s + left - s.load_s])
        given = ["--bank", str(s.corpus), "--out", str(s.out / "vocoder"), "--device", s.device, "--resume"]
        generator = ["--resume-from", str(weights.parent), *VOCODER_OPTIONS, *new]
        return ["vocoder", *given, *generator, *seconds(left), "--plan-s", f"{whole_s:.1f}", *eager]

    t3_weights = Path(s.start_from or ".") / "t3.safetensors"

    def t3(left: float) -> list[str]:
        (plan_s,) = once(s, "t3", [left - s.load_s])
        times = [*seconds(left), "--plan-s", f"{plan_s:.1f}"]
        return ["t3", *common, *times, *eager, *FINE_TUNING_OPTIONS, "--start-from", str(t3_weights)]

    language_model = [
        Task(
            name="t3", needs=(s.done_marker("tokens"), t3_weights), ends_s=0.53 * whole, arguments=t3,
            output=s.out / "t3.safetensors",
        ),
    ]  # fmt: skip
    synthesis = ["--out", str(s.corpus), "--device", s.device, *assets]
    synthesis += ["--hours", str(s.hours), *DATA_OPTIONS]
    return [
        Task(
            name="human", needs=(Path(s.state) / PEOPLE,), ends_s=0.4 * whole,
            arguments=lambda _: ["human", *corpus, *assets],
        ),
        Task(
            name="tokenizer-people", needs=(human, s.corpus / "part00" / READY, s.out / tokenizer),
            ends_s=0.3 * whole, at_most_s=0.18 * whole,
            arguments=lambda left: [
                "tokenizer-people", *corpus, *assets, *seconds(left - s.load_s), *eager,
                "--start-from", str(s.out / tokenizer),
            ],
            optional=True,
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
            name="voice-encoder", needs=(human, s.corpus / "part00" / READY), ends_s=encoder_s,
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
        *(task for task in language_model if task.name in s.stages),
    ]  # fmt: skip
