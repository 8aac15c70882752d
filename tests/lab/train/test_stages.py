"""All stages in order, on a corpus of tones: each reads the outputs of the others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.train.tiny_training import make_everything_tiny, tiny_assets
from safetensors.torch import load_file, save_file
from tiny_wren import TINY

from nightingale import wren
from nightingale.models.chatterbox.build import new_vocoder
from nightingale_lab.train.__main__ import main
from nightingale_lab.train.corpus import Corpus
from nightingale_lab.train.loop import read_log
from nightingale_lab.train.seeding import seeded


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_everything_tiny(monkeypatch)
    tiny_assets(tmp_path / "assets", lines=60)
    (tmp_path / "out").mkdir()
    return tmp_path


def test_the_stages_hand_over_to_one_another(ground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, corpus, state = ground / "out", ground / "corpus", torch.get_rng_state()
    own = ["--out", str(out), "--device", "cpu"]
    fed, assets = ["--corpus", str(corpus), *own], ["--assets", str(ground / "assets")]
    quick = ["--budget-s", "0.01"]
    try:
        sizes = ["--hours", "9", "--first-hours", "0.003", "--batch-seconds", "12"]
        main(["data", "--out", str(corpus), "--device", "cpu", *assets, "--budget-s", "60", *sizes])
        main(["voice-encoder", *fed, *quick, *assets, "--batch", "2"])
        main(["tokenizer", *fed, *quick, "--batch", "2", "--eager"])
        main(["tokens", *fed, *quick])
        phases = ["--match-s", "0.01", "--refine-s", "0.01", "--batch", "1"]
        main(["flow", *fed, *assets, *phases, "--eager"])
        main(["mels", *fed])
        main(["t3", *own, *quick, *assets, "--eager"])
    finally:
        torch.set_rng_state(state)
    with seeded(0):
        vocoder = new_vocoder(TINY.vocoder)
    save_file(vocoder.state_dict(), out / "vocoder.safetensors")

    parts = sorted(corpus.glob("part*"))
    assert [part.name for part in parts] == ["part00", "part01"]
    whole = Corpus.load(corpus)
    assert whole.bank.clips == sum(Corpus.load(part).bank.clips for part in parts)
    assert sum(len(np.load(part / "tokens.npy")) for part in parts) == whole.token_offsets[-1]
    assert np.load(parts[0] / "mels.npy").shape == (len(Corpus.load(parts[0]).bank.f0_hz), 80)
    assert 0 < whole.held_out.sum() < 0.2 * whole.bank.clips
    assert "validation_loss" in read_log(out / "t3.jsonl")[-1]
    assert "validation_mel" in read_log(out / "flow.jsonl")[-1]
    voices = load_file(out / "voices.safetensors")
    assert {"af_heart", "af_heart.teacher"} <= set(voices)
    assert float(voices["am_puck"].norm()) == pytest.approx(1.0, abs=1e-3)

    (out / "wren_tokenizer.json").write_bytes((ground / "assets" / "wren_tokenizer.json").read_bytes())
    main(["export", "--source", str(out), "--out", str(ground / "wren"), "--temperature", "0.6"])
    assert wren.missing(ground / "wren") == []
    card = json.loads((ground / "wren" / "card.json").read_text())
    assert (card["voices"][0], card["sampling"]["temperature"]) == ("heart", 0.6)
    assert "in all" in capsys.readouterr().err
