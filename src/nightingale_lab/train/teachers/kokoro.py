"""Kokoro-82M as a teacher: many English voices (and blends of them) at hundreds of times real time.

    teacher = KokoroTeacher([part0, part1], voices, device="cuda")
    clips = teacher.speak_many([Line(ids, {"af_heart": 0.6, "am_puck": 0.4}, 1.05), ...])

A voice is a table of style vectors, one row per number of phonemes; a blend is a weighted sum of tables.
Everything is float32 on the CPU. On a GPU the decoder runs in float16 (the mantissa of TF32, half the
bytes), and the two memory-bound functions are compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.errors import TextTooLong, VoiceNotFound
from nightingale_lab.train.teachers import kokoro_parts
from nightingale_lab.train.teachers.intonation import Contour
from nightingale_lab.train.teachers.kokoro_net import MAX_PHONEMES, AlignedSpeech, Kokoro
from nightingale_lab.train.teachers.kokoro_weights import load_into, read_parts

_ID_MULTIPLE, _FRAME_MULTIPLE = 8, 16  # padding on a GPU, so that shapes repeat (0.4 s of speech)
_STYLE_ROWS = 400  # rows kept per voice; our sentences are shorter, and longer ones take the last row


@dataclass(frozen=True, slots=True)
class Line:
    """One thing to say: phoneme ids without the end pads, who says it, how fast (1 is the voice's pace)."""

    ids: Sequence[int]
    voice: str | Mapping[str, float]
    speed: float = 1.0
    contours: tuple[Contour, ...] = ()
    """The intonation of its sentences; without, the teacher's own."""


def pack_voices(folder: Path, names: Sequence[str], out: Path) -> None:
    """Gather `<name>.bin` tables, float32 (510, 1, 256), into one float16 archive."""
    tables: dict[str, NDArray[np.float16]] = {}
    for name in names:
        table = np.fromfile(folder / f"{name}.bin", dtype="<f4").reshape(-1, 256)
        tables[name] = table[:_STYLE_ROWS].astype(np.float16)
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, **tables)  # type: ignore[arg-type]  # numpy's stub claims a bool for any keyword


class KokoroTeacher:
    def __init__(
        self,
        parts: Sequence[Path],
        voices: Path,
        device: str | torch.device = "cpu",
    ) -> None:
        """parts: files of kokoro_weights.write_parts. voices: file of pack_voices."""
        self.device = torch.device(device)
        on_gpu = self.device.type == "cuda"
        self.net = Kokoro().eval().requires_grad_(False)
        load_into(self.net, read_parts(parts))
        self.net.to(self.device)
        self.kernels = kokoro_parts.Kernels()
        if on_gpu:
            self.net.half_decoder()
            self.kernels = kokoro_parts.Kernels.compiled()
            self.net.decoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.voices: dict[str, NDArray[np.float32]] = {}
        with np.load(voices) as tables:
            for name in tables.files:
                self.voices[name] = tables[name].astype(np.float32)

    def style(self, voice: str | Mapping[str, float], phonemes: int) -> Tensor:
        """(256,) style vector of a voice or of a blend (weights are normalized) for that many phonemes."""
        blend = {voice: 1.0} if isinstance(voice, str) else voice
        unknown = sorted(blend.keys() - self.voices.keys())
        if unknown or not blend:
            raise VoiceNotFound(
                "Kokoro has no such voice",
                got=", ".join(unknown) or "an empty blend",
                allowed=", ".join(sorted(self.voices)),
                fix="Use these names, or pack more voices.",
            )
        total = sum(blend.values())
        rows = [w / total * self.voices[n][min(phonemes, len(self.voices[n]) - 1)] for n, w in blend.items()]
        return torch.from_numpy(np.sum(rows, axis=0, dtype=np.float32))

    def speak_many(self, lines: Sequence[Line], *, seed: int | None = 0) -> list[Tensor]:
        """Synthesize a batch: float32 samples at 24 kHz on the CPU. Without a seed there is no source noise."""
        speech = self.render_aligned(lines, seed=seed)
        return [row[: int(n)].clone() for row, n in zip(speech.samples.cpu(), speech.counts, strict=True)]

    def render_aligned(self, lines: Sequence[Line], *, seed: int | None = 0) -> AlignedSpeech:
        """Padded speech on the device with the phonemes and pitch it was made from."""
        longest = max(len(line.ids) for line in lines)
        if longest > MAX_PHONEMES:
            raise TextTooLong(
                "Kokoro reads at most one sentence at a time",
                got=f"{longest} phonemes",
                allowed=f"up to {MAX_PHONEMES}",
                fix="Split the text.",
            )
        on_gpu = self.device.type == "cuda"
        size = -(-(longest + 2) // _ID_MULTIPLE) * _ID_MULTIPLE if on_gpu else longest + 2
        ids = torch.zeros(len(lines), size, dtype=torch.long)
        for row, line in zip(ids, lines, strict=True):
            row[1 : 1 + len(line.ids)] = torch.tensor(line.ids)
        lengths = torch.tensor([len(line.ids) + 2 for line in lines])
        style = torch.stack([self.style(line.voice, len(line.ids)) for line in lines])
        speed = torch.tensor([line.speed for line in lines], dtype=torch.float32)
        noise = None if seed is None else torch.Generator(self.device).manual_seed(seed)
        return self.net.aligned(
            ids.to(self.device),
            lengths,
            style.to(self.device),
            speed.to(self.device),
            self.kernels,
            noise,
            _FRAME_MULTIPLE if on_gpu else 1,
            [line.contours for line in lines],
        )
