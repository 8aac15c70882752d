"""Tokens of the corpus in other voices, from which the flow learns too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lab.train.tiny_training import SMALL, VOCODER, make_everything_tiny
from safetensors.torch import save_file

from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale.models.frame_vocoder.config import BINS, HEAD_PARTS
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale_lab.train.bank import FULL_SCALE, HOP
from nightingale_lab.train.converted import other_speakers, render_audio
from nightingale_lab.train.corpus import Corpus
from nightingale_lab.train.flow_step import CONVERTED_SHARE, FlowTraining
from nightingale_lab.train.human_corpus import human_corpus
from nightingale_lab.train.seeding import seeded
from nightingale_lab.train.vocoder import load_vocoder, render_samples

CPU = torch.device("cpu")


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """Three clips of tones, of different lengths."""
    make_everything_tiny(monkeypatch)
    tones = [(np.sin(np.arange(size) * 0.1) * 0.2).astype(np.float32) for size in (20_000, 33_000, 41_000)]
    with seeded(0):
        return human_corpus(tones, VoiceEncoder(SMALL.voice_encoder), device=CPU, rates=(1.0,))


def test_most_clips_get_the_speaker_of_another_one() -> None:
    speakers = np.arange(1000, dtype=np.float16)[:, None].repeat(4, 1)
    given = other_speakers(speakers, seed=3)
    same = (given == speakers).all(1).mean()
    assert 0.2 < same < 0.4
    assert np.array_equal(given, other_speakers(speakers, seed=3))
    assert not np.array_equal(given, other_speakers(speakers, seed=4))


def test_every_clip_is_rendered_where_it_was(tmp_path: Path, corpus: Corpus) -> None:
    with seeded(1):
        made = FrameVocoder(VOCODER).requires_grad_(False)
    made.pitch_predictor.classifier.bias.fill_(150.0)
    made.head.bias.view(-1, HEAD_PARTS, BINS)[:, 2] = -5.0  # little noise
    save_file(made.state_dict(), tmp_path / "vocoder.safetensors")
    net = load_vocoder(tmp_path / "vocoder.safetensors", CPU)
    frames = 2 * int(corpus.token_offsets[-1])
    mels = np.random.default_rng(0).normal(-5, 2, (frames, 80)).astype(np.float16)
    audio = render_audio(net, mels, corpus, device=CPU, seed=0)
    assert (audio.shape, audio.dtype) == (corpus.bank.audio.shape, np.int16)
    first, end = (2 * int(offset) for offset in corpus.token_offsets[1:3])
    alone = torch.from_numpy(mels[first:end].T.astype(np.float32))[None]
    expected = render_samples(net, alone, torch.Generator().manual_seed(0))[0].clamp(-1, 1) * FULL_SCALE
    found = torch.from_numpy(audio[first * HOP : end * HOP].astype(np.float32))
    # Only the noise of the excitation differs.
    assert torch.corrcoef(torch.stack([expected, found]))[0, 1] > 0.9


def test_some_rows_have_the_other_tokens(corpus: Corpus) -> None:
    tokens = torch.zeros(int(corpus.token_offsets[-1]), dtype=torch.int16)
    with seeded(0):
        teacher = VoiceEncoder(SMALL.voice_encoder)
        training = FlowTraining(
            corpus,
            tokens,
            SMALL.flow,
            teacher=teacher,
            device=CPU,
            batch=64,
            eager=True,
            converted=tokens + 7,
        )
        batch = training._batch(training.windows, 64)
    other = (batch["ids"] == 7).any(1)
    assert abs(float(other.float().mean()) - CONVERTED_SHARE) < 0.25
    assert torch.equal(batch["ids"], 7 * (other[:, None] & batch["valid"]))
