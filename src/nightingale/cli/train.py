"""`nightingale train`: the stages of training, forwarded to the program that a bare GPU machine runs; but for
`think`, which needs a model that can speak."""

from __future__ import annotations

import argparse
from pathlib import Path

import typer

FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Everything behind the verb, --help included, is the stage's own."""


def train(context: typer.Context) -> None:
    """Train wren: data, voice-encoder, tokenizer, t3, flow, vocoder, export, curves; a draft for any model.

    `nightingale train --help` lists the stages, `nightingale train STAGE --help` the options of one. The
    same as `python -m nightingale_lab.train`, which needs torch, numpy and safetensors only, and the stage
    `think` besides. The recipe is docs/training.md.
    """
    from nightingale_lab.train.__main__ import main

    if context.args[:1] == ["think"]:
        think(context.args[1:])
    else:
        main(context.args)


def hidden_states(words: list[str]) -> None:
    """Let a model say lines of text, and write down what its T3 thinks: for `train draft --thoughts`."""
    from safetensors.torch import save_file

    from nightingale.engine.load import load_model
    from nightingale.voices.voice import Voice
    from nightingale_lab.train.hidden_states import overhear

    parser = argparse.ArgumentParser(prog="nightingale train think", description=think.__doc__)
    parser.add_argument("--model", required=True, help="a name of `nightingale models list`, or a folder")
    parser.add_argument("--texts", type=Path, required=True, help="lines to say; some hundreds are a start")
    parser.add_argument("--out", type=Path, required=True, help="a .safetensors; 8 KB a token for width 1024")
    parser.add_argument("--voice", type=Path, help="a .safetensors voice; default: the model's own")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    model = load_model(args.model, device=args.device, dtype="auto", offline=False, options={})
    lines = [line for line in args.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    voice = Voice.load(args.voice) if args.voice else model.default_voice
    heard = overhear(model, lines, voice=voice, seed=args.seed)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(heard, args.out)
    typer.echo(f"{len(heard['tokens'])} tokens of {len(heard['counts'])} rows: {args.out}", err=True)
