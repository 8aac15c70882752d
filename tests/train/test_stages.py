"""The stages behind one another, on a corpus of hums: each takes what the one before it left."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_wren import TINY

from nightingale import wren
from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder, VoiceEncoderConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.train import t3
from nightingale.train.__main__ import main
from nightingale.train.bank import AudioBank
from nightingale.train.corpus import Corpus
from nightingale.train.prepare import train_vocabulary
from nightingale.train.seeding import seeded

CLIPS, SAMPLES_PER_TOKEN = 6, 960


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus, a listener and a vocabulary; networks small enough for a CPU."""
    monkeypatch.setitem(PRESETS, "wren", TINY)  # type: ignore[misc]
    monkeypatch.setattr(t3, "BATCH_IDS", 256)
    # Stages compute in bfloat16; a CPU without it takes minutes for a step.
    monkeypatch.setattr(torch, "autocast", lambda *_: nullcontext())
    rng = np.random.default_rng(0)
    counts = rng.integers(40, 90, CLIPS)
    bank = AudioBank.join(
        (
            (8000 * np.sin(np.arange(n * SAMPLES_PER_TOKEN) * (i + 3) / 90)).astype(np.int16),
            np.full(2 * n, 100.0),
        )
        for i, n in enumerate(counts)
    )
    Corpus(
        bank=bank,
        phones=rng.integers(0, 178, len(bank.f0_hz)).astype(np.uint8),
        text_ids=rng.integers(3, 200, 10 * CLIPS).astype(np.int16),
        text_offsets=np.arange(CLIPS + 1, dtype=np.int64) * 10,
        voice=(np.arange(CLIPS) % 2).astype(np.int16),
        speaker=rng.standard_normal((CLIPS, 256)).astype(np.float16),
    ).save(tmp_path / "corpus")
    (tmp_path / "corpus" / "names.json").write_text(json.dumps(["af_heart", "am_puck"]))
    with seeded(0):
        listener = VoiceEncoder(VoiceEncoderConfig())
    save_file(listener.state_dict(), tmp_path / "listener.safetensors")
    (tmp_path / "out").mkdir()
    words = [a + b + c for a in "bcdfghlmnprst" for b in "aeiou" for c in "bdglmnprst"]
    (tmp_path / "out" / "wren_tokenizer.json").write_text(train_vocabulary(words, size=300))
    return tmp_path


def test_the_stages_hand_over_to_one_another(ground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, state = ground / "out", torch.get_rng_state()
    given = ["--corpus", str(ground / "corpus"), "--out", str(out), "--device", "cpu"]
    quick, vocabulary = ["--budget-s", "0.01"], ["--vocabulary", str(out / "wren_tokenizer.json")]
    listener = ["--listener", str(ground / "listener.safetensors")]
    try:
        main(["voice-encoder", *given, *quick, *listener, "--batch", "2"])
        main(["tokenizer", *given, *quick, "--batch", "2", "--eager"])
        main(
            [
                "flow",
                *given,
                "--match-s",
                "0.01",
                "--distill-s",
                "0.01",
                "--batch",
                "1",
                "--distill-batch",
                "1",
                "--eager",
            ]
        )
        main(["t3", *given, *quick, *vocabulary, "--eager"])
    finally:
        torch.set_rng_state(state)
    with seeded(0):
        vocoder = Hift(TINY.hift)
    save_file(vocoder.state_dict(), out / "vocoder.safetensors")

    tokens = np.load(out / "tokens.npy")
    assert len(tokens) == Corpus.load(ground / "corpus").token_offsets[-1]
    voices = load_file(out / "voices.safetensors")
    assert set(voices) == {"af_heart", "am_puck", "af_heart.teacher", "am_puck.teacher"}
    assert float(voices["am_puck"].norm()) == pytest.approx(1.0, abs=1e-3)

    main(["export", "--source", str(out), "--out", str(ground / "wren"), "--temperature", "0.6"])
    assert wren.missing(ground / "wren") == []
    card = json.loads((ground / "wren" / "card.json").read_text())
    assert (card["voices"], card["sampling"]["temperature"]) == (["heart", "puck"], 0.6)
    assert "in all" in capsys.readouterr().err
