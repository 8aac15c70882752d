"""`nightingale say` reads plain arguments itself, exactly as typer does, and leaves the others to typer."""

from __future__ import annotations

import pytest
import typer.main

from nightingale.cli.arguments import parameters_of, parse_plain
from nightingale.cli.commands import app
from nightingale.cli.say import say

PLAIN = [
    [],
    ["-f", "a.txt", "--play", "--bitrate", "64k", "-y"],
    ["--batch", "a.csv", "-o", "folder", "--format", "mp3", "--config", "b.toml"],
    ["Good morning."],
    ["-", "-o", "-"],
    ["", "--seed", "3"],
    ["-m", "noise", "Two words", "--out", "a.flac", "--voice", "emma", "-l", "en"],
    ["Hi.", "--temperature", "0.5", "--top-p", "1", "--min-p", "0", "--repetition-penalty", "1.2"],
    ["Hi.", "--top-k", "40", "--no-normalize", "--strict", "--read-code"],
    ["Hi.", "--cfg-weight", "0", "--exaggeration", "0.7", "--speed", "1e0", "--seed", " 7 "],
    ["Hi.", "--profile", "fast", "--device", "cpu", "--offline", "--json", "-q", "-O", "t3=v3", "-O", "a=b"],
    ["Hi.", "--seed", "1", "--seed", "2", "--quiet", "--quiet"],
]
LEFT_TO_TYPER = [
    ["--help"],
    ["Hi.", "there."],
    ["--", "-1"],
    ["Hi.", "--out=a.wav"],
    ["Hi.", "-oa.wav"],
    ["Hi.", "-o"],
    ["Hi.", "-o", "-x"],
    ["Hi.", "--seed", "one"],
    ["Hi.", "--seed", "1.5"],
    ["Hi.", "--see", "1"],
]


@pytest.mark.parametrize("arguments", PLAIN, ids=" ".join)
def test_plain_arguments_mean_what_they_mean_to_typer(arguments: list[str]) -> None:
    command = typer.main.get_command(app).commands["say"]  # type: ignore[attr-defined]
    told = command.make_context("say", list(arguments)).params
    # As typer calls the function: a list, or None if it is empty. Some versions have a tuple here.
    told["choices"] = list(told["choices"] or ()) or None
    plain = parse_plain(say, arguments)
    assert plain is not None
    parameters = parameters_of(say)
    assert {name: plain.get(name, parameters[name].default) for name in parameters} == told


@pytest.mark.parametrize("arguments", LEFT_TO_TYPER, ids=" ".join)
def test_help_mistakes_and_other_spellings_are_left_to_typer(arguments: list[str]) -> None:
    assert parse_plain(say, arguments) is None
