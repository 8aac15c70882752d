"""Small networks, a teacher that plays tones, and a few lines of text, for the tests of training."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_wren import TINY

from nightingale.models.chatterbox.encoders.config import VoiceEncoderConfig
from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.frame_vocoder.config import FrameVocoderConfig
from nightingale_lab.train import stages, t3, vocoder, vocoder_step
from nightingale_lab.train.prepare import Lines, train_vocabulary
from nightingale_lab.train.seeding import seeded
from nightingale_lab.train.speakers import SPEAKER_SHARES
from nightingale_lab.train.teachers.kokoro import Line
from nightingale_lab.train.teachers.kokoro_net import AlignedSpeech

RATE = 24_000
VOCODER = FrameVocoderConfig(width=16, hidden=24, blocks=2, pitch_width=16)
SMALL = replace(TINY, voice_encoder=VoiceEncoderConfig(width=16, layers=1))
WORDS = [a + b + c for a in "bcdfghlmnprst" for b in "aeiou" for c in "bdglmnprst"]


class ToneTeacher:
    """Renders every phoneme as 150 ms of a tone."""

    def __init__(self) -> None:
        self.voices = dict.fromkeys(SPEAKER_SHARES)

    def render_aligned(self, lines: Sequence[Line], *, seed: int | None = 0) -> AlignedSpeech:
        longest = max(len(line.ids) for line in lines)
        ids = torch.zeros(len(lines), longest, dtype=torch.long)
        for row, line in zip(ids, lines, strict=True):
            row[: len(line.ids)] = torch.tensor(line.ids)
        size = 6 * 600  # six of the teacher's 40 Hz frames
        hz = ids.repeat_interleave(size, 1) * 2.0 + 80
        counts = torch.tensor([len(line.ids) * size for line in lines])
        inside = torch.arange(hz.shape[1])[None] < counts[:, None]
        samples = 0.3 * torch.sin(2 * torch.pi * torch.cumsum(hz / RATE, 1)) * inside
        ends = (torch.arange(longest) + 1).expand(len(lines), -1).contiguous() * 6
        return AlignedSpeech(samples, counts, ids, ends, torch.full((len(lines), longest * 12), 110.0))


def tiny_assets(folder: Path, *, lines: int = 160) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 4)).capitalize() + "." for _ in range(lines)]
    spoken = [rng.integers(1, 178, int(size)).astype(np.uint8) for size in rng.integers(6, 14, lines)]
    empty = [np.zeros(0, np.uint8)] * lines
    Lines(texts=texts, american=spoken, british=empty).write(folder / "lines.npz")
    (folder / "wren_tokenizer.json").write_text(train_vocabulary(WORDS, size=300))
    with seeded(0):
        save_file(VoiceEncoder(SMALL.voice_encoder).state_dict(), folder / "resemblyzer.safetensors")
    return folder


def make_everything_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "wren", SMALL)  # type: ignore[misc]
    monkeypatch.setattr(t3, "BATCH_IDS", 256)
    monkeypatch.setattr(stages, "make_teacher", lambda *_: ToneTeacher())
    plan = vocoder_step.VocoderPlan(
        network=VOCODER, batch=1, window_frames=8, period_channels=(4, 4), spectral_channels=4
    )

    def small(**given: Any) -> vocoder_step.VocoderPlan:
        return plan

    monkeypatch.setattr(vocoder, "VocoderPlan", small)
    monkeypatch.setattr(vocoder, "WREN_VOCODER", VOCODER)
    # Stages compute in bfloat16; a step takes minutes on a CPU without it.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
