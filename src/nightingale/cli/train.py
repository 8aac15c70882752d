"""`nightingale train`: the stages of training, forwarded to the program that a bare GPU machine runs."""

from __future__ import annotations

import typer

FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Everything behind the verb, --help included, is the stage's own."""


def train(context: typer.Context) -> None:
    """Train wren: data, voice-encoder, tokenizer, t3, flow, vocoder, export, curves.

    `nightingale train --help` lists the stages, `nightingale train STAGE --help` the options of one. The
    same as `python -m nightingale.train`, which needs torch, numpy and safetensors only. The recipe is
    docs/training.md.
    """
    from nightingale.train.__main__ import main

    main(context.args)
