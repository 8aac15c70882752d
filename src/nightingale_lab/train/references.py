"""Stage `references`: recordings of the teacher's named voices, to compare wren's with.

They have wren's names (`heart_0.wav`) and held-out lines. A CPU is enough: Kokoro runs about in real time there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nightingale.audio.samples import wav_bytes
from nightingale.clocks import CLOCKS
from nightingale_lab.train.asset_files import Assets
from nightingale_lab.train.corpus import held_out
from nightingale_lab.train.speakers import SPEAKER_SHARES
from nightingale_lab.train.stages import make_teacher
from nightingale_lab.train.teachers.kokoro import Line

WANTED_PHONEMES = range(60, 110)
"""Four to eight seconds of speech."""


def write_references(assets: Assets, out: Path, *, each: int, device: str) -> None:
    lines = assets.lines
    unseen = np.flatnonzero(held_out(np.arange(len(lines), dtype=np.int32)))
    chosen = [i for i in unseen if len(lines.american[i]) in WANTED_PHONEMES][:each]
    teacher = make_teacher(assets, device)
    out.mkdir(parents=True, exist_ok=True)
    for name in SPEAKER_SHARES:
        clips = teacher.speak_many([Line(tuple(lines.american[i].tolist()), name) for i in chosen])
        for number, samples in enumerate(clips):
            path = out / f"{name.partition('_')[2]}_{number}.wav"
            path.write_bytes(wav_bytes(samples.clamp(-1, 1).numpy(), CLOCKS.sample_rate_hz))
