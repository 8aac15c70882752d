"""Training must run where only torch, numpy and safetensors are installed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from nightingale_lab.train.__main__ import build_parser, main
from nightingale_lab.train.seeding import seeded

ABSENT = (
    "soxr", "soundfile", "tokenizers", "typer", "rich", "num2words", "platformdirs", "huggingface_hub", "matplotlib",
)  # fmt: skip
MODULES = (
    "__main__", "asset_files", "bank", "bpe", "clip_codec", "corpus",
    "human_clips", "human_corpus", "mel_speaker", "rendering_stages",
    "discriminators", "export", "flow", "flow_step", "loop", "plan", "prepare", "resample", "session",
    "single_speaker", "speakers", "stages", "supervisor", "synthesize", "t3", "t3_rows", "teachers.kokoro",
    "token_bank", "tokenizer", "vocoder", "vocoder_data", "voice_encoder", "volumes",
)  # fmt: skip


def test_every_stage_can_be_imported_on_a_bare_machine() -> None:
    block = f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r}))"
    imports = "; ".join(f"import nightingale_lab.train.{name}" for name in MODULES)
    work = "import torch; from nightingale_lab.train.resample import To16k; To16k()(torch.zeros(1, 960))"
    done = subprocess.run(
        [sys.executable, "-c", f"{block}; {imports}; {work}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_list_of_stages_needs_no_torch() -> None:
    block = "import sys; sys.modules['torch'] = None"
    code = f"{block}; from nightingale_lab.train.__main__ import main; main(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for stage in [
        "assets",
        "session",
        "data",
        "tokenizer",
        "voice-encoder",
        "t3",
        "flow",
        "vocoder",
        "export",
    ]:
        assert f"    {stage}" in done.stdout


@pytest.mark.parametrize(
    ("stage", "source"),
    [("voice-encoder", "--corpus"), ("tokenizer", "--corpus"), ("t3", "--assets"), ("flow", "--corpus")],
)
def test_every_stage_asks_for_what_it_learns_from_and_its_budget(
    stage: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args([stage])
    told = capsys.readouterr().err
    assert source in told
    assert "-s" in told


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["export", "--source", "x", "--sauce", "y"])


def test_seeded_construction_leaves_the_process_as_it_was() -> None:
    before = torch.get_rng_state()
    with seeded(1):
        first = torch.randn(3)
    with seeded(1):
        assert torch.equal(torch.randn(3), first)
    assert torch.equal(torch.get_rng_state(), before)
