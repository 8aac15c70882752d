"""`nightingale train`: run a stage of training. All but `capture` are forwarded to nightingale_lab.train."""

from __future__ import annotations

import argparse
from pathlib import Path

import typer


def train(context: typer.Context) -> None:
    """Train wren: data, voice-encoder, tokenizer, t3, flow, vocoder, export, curves; a draft for any model.

    `nightingale train --help` lists the stages, `nightingale train STAGE --help` the options of one. It is
    the same as `python -m nightingale_lab.train`, which needs only torch, numpy and safetensors, except for
    the stage `capture`. docs/training.md describes the whole procedure.
    """
    from nightingale_lab.train.__main__ import main

    if context.args[:1] in (["capture"], ["think"]):  # the latter is its former name
        run_capture(context.args[1:])
    else:
        main(context.args)


def run_capture(words: list[str]) -> None:
    """Run the stage `capture`."""
    from safetensors.torch import save_file

    from nightingale.engine.load import load_model
    from nightingale.voices.voice import Voice
    from nightingale_lab.reference import setup_for
    from nightingale_lab.train.hidden_states import capture_hidden_states

    about = "Synthesize lines of text and store the hidden states of T3, for `train draft --hidden-states`."
    parser = argparse.ArgumentParser(prog="nightingale train capture", description=about)
    parser.add_argument("--model", required=True, help="a name of `nightingale models list`, or a folder")
    parser.add_argument(
        "--texts", type=Path, required=True, help="lines to synthesize, some hundreds or more"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="a .safetensors; 8 KB per token for width 1024"
    )
    parser.add_argument("--voice", type=Path, help="a .safetensors voice; default: the model's own")
    parser.add_argument("--language", help="language code of the lines, for multilingual models")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    model = load_model(args.model, offline=False, options={})
    lines = [line for line in args.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    voice = Voice.load(args.voice) if args.voice else model.default_voice
    device = setup_for(device=args.device).machine.device
    captured = capture_hidden_states(
        model, lines, voice=voice, seed=args.seed, language=args.language, device=device
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(captured, args.out)
    typer.echo(f"{len(captured['tokens'])} tokens of {len(captured['counts'])} rows: {args.out}", err=True)
