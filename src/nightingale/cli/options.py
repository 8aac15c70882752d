"""Arguments that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _model_option(text: str) -> Any:
    """Describe an option whose default depends on the model."""
    return typer.Option(help=text, show_default="the model's")


Model = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        help="A name of `nightingale models list`, or a folder.",
        show_default="wren, the built-in model",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never use the network.")]
Choices = Annotated[
    list[str] | None,
    typer.Option(
        "-O",
        "--option",
        metavar="KEY=VALUE",
        help="An option of the model: t3=v3, s3gen=v3, kind=multilingual.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON, last, on stdout.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only errors and notices on stderr.")]

Text = Annotated[
    str,
    typer.Argument(metavar="TEXT|-", help="The text to speak; - reads it from stdin.", show_default=False),
]
Out = Annotated[
    str, typer.Option("-o", "--out", help="Output file: .wav .flac .ogg .mp3, or - for WAV on stdout.")
]
VoiceName = Annotated[
    str | None,
    typer.Option(
        "-v",
        "--voice",
        help="A name, a clip (wav, flac, ogg, mp3) or a .safetensors voice.",
        show_default="the model's own",
    ),
]
Language = Annotated[
    str | None,
    typer.Option("-l", "--language", help="Language code, for multilingual models.", show_default=False),
]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same bytes.", show_default="random")]
Temperature = Annotated[float | None, _model_option("Sampling temperature.")]
TopP = Annotated[float | None, _model_option("Nucleus sampling: total probability of the tokens kept.")]
MinP = Annotated[float | None, _model_option("Minimum probability, relative to the best token.")]
RepetitionPenalty = Annotated[float | None, _model_option("Penalty for tokens that occurred before.")]
CfgWeight = Annotated[float | None, _model_option("Classifier-free guidance; 0 is off and faster.")]
Exaggeration = Annotated[float | None, _model_option("Strength of emotion.")]
Speed = Annotated[float | None, typer.Option(help="0.25 to 4.0; keeps the pitch.", show_default="1.0")]
Profile = Annotated[
    str | None,
    _model_option(
        "exact: rendered whole, as upstream does; balanced: streamed; fast: also in lower precision. "
        "With switches: balanced+cache=int8+keep=50+draft=guess (docs/kv-cache.md, docs/speculative.md).",
    ),
]
