"""`nightingale train`: run a stage of training, which is forwarded to nightingale_lab.train."""

from __future__ import annotations

import typer


def train(context: typer.Context) -> None:
    """Train wren: data, voice-encoder, tokenizer, t3, flow, vocoder, export, curves.

    `nightingale train --help` lists the stages, `nightingale train STAGE --help` the options of one. It is
    the same as `python -m nightingale_lab.train`, which needs only torch, numpy and safetensors.
    docs/training.md describes the whole procedure.
    """
    from nightingale_lab.train.__main__ import main

    main(context.args)
