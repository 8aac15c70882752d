"""The commands of docs/training.md have arguments that their stages accept."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from nightingale_lab.train import assets, human_clips, human_texts, session
from nightingale_lab.train.__main__ import build_parser

PAGE = Path(__file__).parents[3] / "docs" / "training.md"
COMMAND = re.compile(
    r"^(?:\w+=\S+ )*(?:python3? -m nightingale_lab\.train|nightingale train) (?!capture)(.*)$", re.M
)


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    return COMMAND.findall("\n".join(blocks).replace("\\\n", " "))


@pytest.mark.parametrize("command", commands())
def test_a_stage_accepts_the_arguments_of_the_recipe(command: str) -> None:
    stage, *arguments = shlex.split(command, comments=True)
    parsers = {
        "assets": assets.build_parser,
        "human-clips": human_clips.build_parser,
        "human-texts": human_texts.build_parser,
        "session": session.parser,
    }
    if stage in parsers:
        assert parsers[stage]().parse_args(arguments)
    else:
        assert build_parser().parse_args([stage, *arguments]).stage == stage


def test_the_page_has_the_commands_of_a_session_that_continues_t3() -> None:
    stages = [command.split()[0] for command in commands()]
    assert {"assets", "session", "unpack", "export", "single-speaker"} <= set(stages)
    assert sum("--continue-t3" in command for command in commands()) == 2
