"""The arguments that verbs share, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_OWN = "the model's"

Model = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        help="A name of `nightingale models list`, or a folder.",
        show_default="wren, the voice in the box",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never touch the network.")]
Choices = Annotated[
    list[str] | None,
    typer.Option(
        "-O",
        "--option",
        metavar="KEY=VALUE",
        help="A choice within the model: t3=v3, s3gen=v3, kind=multilingual.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="End stdout with one line of JSON.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Only errors and notices on stderr.")]

Text = Annotated[
    str, typer.Argument(metavar="TEXT|-", help="What to say; - reads it from stdin.", show_default=False)
]
Out = Annotated[
    str, typer.Option("-o", "--out", help="Where to: .wav .flac .ogg .mp3, or - for WAV on stdout.")
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
Seed = Annotated[int | None, typer.Option(help="Same seed, same bytes.", show_default="a new one each time")]
Temperature = Annotated[float | None, typer.Option(help="Spread of the draw.", show_default=_OWN)]
TopP = Annotated[float | None, typer.Option(help="Keep the likeliest ids up to this sum.", show_default=_OWN)]
MinP = Annotated[float | None, typer.Option(help="Drop ids below this share of the best.", show_default=_OWN)]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Discourage ids already said.", show_default=_OWN)
]
CfgWeight = Annotated[
    float | None, typer.Option(help="Guidance towards the text; 0 is off and faster.", show_default=_OWN)
]
Speed = Annotated[float | None, typer.Option(help="0.25 to 4.0; the pitch stays.", show_default="1.0")]
Profile = Annotated[
    str | None,
    typer.Option(
        help="exact: rendered whole, as upstream does; balanced: streamed; fast: and in lower precision. "
        "With switches: balanced+cache=int8+keep=50+draft=guess (docs/kv-cache.md, docs/speculative.md).",
        show_default=_OWN,
    ),
]
Exaggeration = Annotated[float | None, typer.Option(help="Strength of emotion.", show_default=_OWN)]
Results = Annotated[
    Path | None,
    typer.Option(
        help="Folder of stored lines, bench.jsonl and verify.jsonl.",
        show_default="benchmarks/results in a checkout",
    ),
]
