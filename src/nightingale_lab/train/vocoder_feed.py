"""What the vocoder learns from while it learns: the corpus as it grows, at last with the flow's mels.

Training starts on the first part of the corpus, while the teacher still speaks. When all parts are there it
goes on with all of them; when mels of the flow lie beside some parts (`mels.npy`), with those parts and mels,
since that is what it will be given to render.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nightingale_lab.train.bank import AudioBank
from nightingale_lab.train.corpus import ready_parts

DONE, MELS = "done", "mels.npy"
"""Files: of a corpus that will get no more parts; of a part, (frames, 80) float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    bank: AudioBank
    mels: NDArray[np.float16] | None = None


class Feed:
    """The best material of a corpus folder at any time."""

    def __init__(self, corpus: Path) -> None:
        self.corpus = corpus
        self.taken: tuple[Path, ...] = ()
        self.with_mels = False

    def now(self) -> Material:
        """What there is."""
        return self.newer() or Material(bank=self._bank(self.taken))

    def newer(self) -> Material | None:
        """Better material than was taken last, if there is any."""
        if (self.corpus / "audio.npy").is_file():
            parts, mels = [self.corpus], [self.corpus / MELS]
        else:
            parts = ready_parts(self.corpus)
            mels = [part / MELS for part in parts]
        made = tuple(part for part, mel in zip(parts, mels, strict=True) if mel.is_file())
        if made:
            if self.with_mels:
                return None
            self.with_mels, self.taken = True, made
            return Material(
                bank=self._bank(made), mels=np.concatenate([np.load(part / MELS) for part in made])
            )
        if self.taken and (self.taken == tuple(parts) or not (self.corpus / DONE).exists()):
            return None
        self.taken = tuple(parts)
        return Material(bank=self._bank(self.taken))

    def _bank(self, parts: tuple[Path, ...]) -> AudioBank:
        banks = [AudioBank.load(part) for part in parts]
        return banks[0] if len(banks) == 1 else AudioBank.chain(banks)
