"""`python -m nightingale.train STAGE …`: training, stage by stage, with torch, numpy and safetensors alone.

`nightingale train STAGE …` is the same program behind the product's command line. A stage reads a corpus
folder, works for its budget of seconds, resumes from what it left in its out folder, and says how it is doing
on stderr. The order, with what each costs and reaches, is docs/training.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nightingale.errors import NightingaleError

FINAL_MARKS = ".!?,;:"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nightingale train", description="Train wren, stage by stage.")
    stages = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--out", type=Path, required=True, help="folder of states, logs and weights")
    common.add_argument("--device", default="cuda")
    common.add_argument("--seed", type=int, default=0)
    timed = argparse.ArgumentParser(add_help=False, parents=[common])
    timed.add_argument("--corpus", type=Path, required=True, help="folder that the stage data wrote")
    batched = argparse.ArgumentParser(add_help=False)
    batched.add_argument("--batch", type=int, help="clips per step; the stage's own default if left out")
    graphed = argparse.ArgumentParser(add_help=False)
    graphed.add_argument("--eager", action="store_true", help="no CUDA graphs; needed on a CPU")

    data = stages.add_parser("data", parents=[common], help="lines of text -> corpus, spoken by the teacher")
    data.add_argument("--lines", type=Path, required=True, help="lines.npz (nightingale.train.prepare)")
    data.add_argument("--vocabulary", type=Path, required=True, help="wren_tokenizer.json")
    data.add_argument("--kokoro", type=Path, required=True, nargs="+", help="parts of the teacher's weights")
    data.add_argument("--voices", type=Path, required=True, help="the teacher's voices.npz")
    data.add_argument("--listener", type=Path, required=True, help="resemblyzer.safetensors")
    data.add_argument("--budget-s", type=float, required=True)
    data.add_argument("--limit", type=int, help="only so many lines")
    data.set_defaults(run=run_data)

    listener = stages.add_parser("voice-encoder", parents=[timed, batched], help="our own ear for speakers")
    listener.add_argument("--listener", type=Path, required=True, help="resemblyzer.safetensors")
    listener.add_argument("--budget-s", type=float, required=True)
    listener.set_defaults(run=run_voice_encoder)

    tokenizer = stages.add_parser(
        "tokenizer", parents=[timed, batched, graphed], help="speech tokens, then tokens.npy of the corpus"
    )
    tokenizer.add_argument("--budget-s", type=float, required=True)
    tokenizer.set_defaults(run=run_tokenizer)

    t3 = stages.add_parser("t3", parents=[timed, graphed], help="text to speech tokens")
    t3.add_argument("--vocabulary", type=Path, required=True, help="wren_tokenizer.json")
    t3.add_argument("--budget-s", type=float, required=True)
    t3.set_defaults(run=run_t3)

    flow = stages.add_parser(
        "flow", parents=[timed, batched, graphed], help="speech tokens to mel, in two steps"
    )
    flow.add_argument("--match-s", type=float, required=True, help="seconds of flow matching")
    flow.add_argument("--distill-s", type=float, required=True, help="seconds of distillation to two steps")
    flow.add_argument("--distill-batch", type=int, default=64)
    flow.set_defaults(run=run_flow)

    # The vocoder has a command line of its own, and gets whatever follows its name.
    stages.add_parser("vocoder", add_help=False, help="mel to samples (see: vocoder --help)")

    export = stages.add_parser("export", help="pack everything into the files that ship")
    export.add_argument("--source", type=Path, required=True, help="folder with the outputs of all stages")
    export.add_argument("--out", type=Path, help="default: the package's own folder")
    export.add_argument("--default-voice", default="heart")
    export.add_argument("--temperature", type=float)
    export.add_argument("--min-p", type=float)
    export.add_argument("--repetition-penalty", type=float)
    export.set_defaults(run=run_export)

    curves = stages.add_parser("curves", help="draw each *.jsonl log as a PNG beside it (needs matplotlib)")
    curves.add_argument("--out", type=Path, required=True, help="folder with the logs")
    curves.set_defaults(run=run_curves)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["vocoder"]:
        from nightingale.train import vocoder

        vocoder.main(given[1:])
        return
    args = build_parser().parse_args(given)
    if hasattr(args, "seed"):
        import torch

        # Stages draw batches and noise on the device, from its global generator.
        torch.manual_seed(args.seed)
        args.out.mkdir(parents=True, exist_ok=True)
    args.run(args)


def say(record: dict[str, Any]) -> None:
    """The progress line."""
    from nightingale.train.loop import progress_line

    sys.stderr.write(progress_line(record) + "\n")
    sys.stderr.flush()


def run_data(args: argparse.Namespace) -> None:
    from dataclasses import replace

    import numpy as np
    import torch

    from nightingale.train.cast import BLENDS, SHARES
    from nightingale.train.pieces import Pieces
    from nightingale.train.prepare import Lines
    from nightingale.train.synthesize import Casting, cast_lines, synthesize
    from nightingale.train.teachers.kokoro import KokoroTeacher
    from nightingale.train.voice_encoder import speaker_vectors

    lines, pieces = Lines.read(args.lines), Pieces(args.vocabulary)
    order = np.random.default_rng(args.seed).permutation(len(lines))[: args.limit]
    teacher = KokoroTeacher(args.kokoro, args.voices, args.device)
    requests = cast_lines(
        [{"american": lines.american[i], "british": lines.british[i]} for i in order],
        [np.asarray(pieces.encode(lines.texts[i]), dtype=np.int16) for i in order],
        Casting(shares=SHARES, pool=sorted(n for n in teacher.voices if n[0] in "ab"), blends=BLENDS),
        seed=args.seed,
    )
    corpus = synthesize(teacher, requests, budget_s=args.budget_s, seed=args.seed, say=say)
    del teacher
    device = torch.device(args.device)
    heard = speaker_vectors(_listener(args.listener).to(device), corpus, device=device)
    replace(corpus, speaker=heard.numpy()).save(args.out)
    (args.out / "names.json").write_text(json.dumps(list(SHARES)), encoding="utf-8")
    say({"clips": corpus.bank.clips, "hours": corpus.bank.seconds / 3600})


def run_voice_encoder(args: argparse.Namespace) -> None:
    import torch
    from safetensors.torch import save_file

    from nightingale.train.cast import HEARD_BY_TEACHER, mean_speakers
    from nightingale.train.corpus import Corpus
    from nightingale.train.voice_encoder import speaker_vectors, train_voice_encoder

    corpus, device = Corpus.load(args.corpus), torch.device(args.device)
    net = train_voice_encoder(
        corpus,
        _listener(args.listener),
        args.out,
        budget_s=args.budget_s,
        device=device,
        say=say,
        **_batch(args),
    )
    own, taught = speaker_vectors(net, corpus, device=device), torch.from_numpy(corpus.speaker)
    say({"clips": len(own), "cosine": float((own.float() * taught.float()).sum(1).mean())})
    names, voice = json.loads((args.corpus / "names.json").read_text()), torch.from_numpy(corpus.voice)
    theirs = {name + HEARD_BY_TEACHER: v for name, v in mean_speakers(taught, voice, names).items()}
    save_file(mean_speakers(own, voice, names) | theirs, args.out / "voices.safetensors")


def run_tokenizer(args: argparse.Namespace) -> None:
    import numpy as np
    import torch

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale.train.corpus import Corpus
    from nightingale.train.tokenizer import code_entropy_bits, tokenize_corpus, train_tokenizer

    corpus, device = Corpus.load(args.corpus), torch.device(args.device)
    net = train_tokenizer(
        corpus,
        args.out,
        PRESETS["wren"].speech_tokenizer,
        budget_s=args.budget_s,
        device=device,
        eager=args.eager,
        seed=args.seed,
        say=say,
        **_batch(args),
    )
    tokens = tokenize_corpus(net, corpus, device=device)
    np.save(args.out / "tokens.npy", tokens.cpu().numpy())
    say({"tokens": len(tokens), "bits": code_entropy_bits(tokens)})


def run_t3(args: argparse.Namespace) -> None:
    import numpy as np
    import torch

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale.train.corpus import Corpus
    from nightingale.train.t3 import train_t3

    ids = json.loads(args.vocabulary.read_text(encoding="utf-8"))["model"]["vocab"]
    train_t3(
        Corpus.load(args.corpus),
        np.load(args.out / "tokens.npy"),
        args.out,
        PRESETS["wren"].t3,
        marks=frozenset(ids[mark] for mark in FINAL_MARKS if mark in ids),
        budget_s=args.budget_s,
        device=torch.device(args.device),
        eager=args.eager,
        seed=args.seed,
        say=say,
    )


def run_flow(args: argparse.Namespace) -> None:
    import numpy as np
    import torch

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale.train.corpus import Corpus
    from nightingale.train.flow import train_flow

    train_flow(
        Corpus.load(args.corpus),
        torch.from_numpy(np.load(args.out / "tokens.npy")),
        args.out,
        PRESETS["wren"].flow,
        match_s=args.match_s,
        distill_s=args.distill_s,
        distill_batch=args.distill_batch,
        device=torch.device(args.device),
        eager=args.eager,
        say=say,
        **_batch(args),
    )


def run_export(args: argparse.Namespace) -> None:
    from dataclasses import replace

    from nightingale import wren
    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale.train.export import export

    tuned = {name: getattr(args, name) for name in ("temperature", "min_p", "repetition_penalty")}
    report = export(
        args.source,
        args.out or wren.folder(),
        PRESETS["wren"],
        default_voice=args.default_voice,
        sampling=replace(
            wren.SAMPLING, **{name: value for name, value in tuned.items() if value is not None}
        ),
    )
    sys.stderr.write(f"{report}\n")


def run_curves(args: argparse.Namespace) -> None:
    from nightingale.train.loop import draw_curves, read_log

    for log in sorted(args.out.glob("*.jsonl")):
        numbers = {k for row in read_log(log) for k, v in row.items() if isinstance(v, float)}
        draw_curves(log, log.with_suffix(".png"), sorted(numbers - {"seconds", "elapsed_s"}))


def _batch(args: argparse.Namespace) -> dict[str, int]:
    return {} if args.batch is None else {"batch": args.batch}


def _listener(path: Path) -> Any:
    from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder, VoiceEncoderConfig
    from nightingale.models.checkpoint import load, read_tensors

    return load(lambda: VoiceEncoder(VoiceEncoderConfig()), read_tensors(path), source=path)


if __name__ == "__main__":
    try:
        main()
    except NightingaleError as error:
        sys.exit(f"error: {error}")
