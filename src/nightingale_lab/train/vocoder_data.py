"""The training data of the vocoder: the corpus as it grows, and finally the mels of the flow.

Training starts on the first part of the corpus, while the others are still synthesized, and continues with all
parts when they are complete. When some parts have mels of the flow (`mels.npy`), it continues with these parts
and mels, since they are the vocoder's input at inference.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nightingale_lab.train.bank import AudioBank
from nightingale_lab.train.corpus import ready_parts

DONE, MELS = "done", "mels.npy"
"""Files: a marker of a complete corpus; the mels of a part, (frames, 80) float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocoderData:
    """Audio, and for the last phase the mels of the flow."""

    bank: AudioBank
    mels: NDArray[np.float16] | None = None


class VocoderDataSource:
    """The best data in a corpus folder at any time."""

    def __init__(self, corpus: Path) -> None:
        self.corpus = corpus
        self.parts_in_use: tuple[Path, ...] = ()
        self.with_mels = False

    def current(self) -> VocoderData:
        """Return the best data that there is."""
        return self.newer() or VocoderData(bank=self._bank(self.parts_in_use))

    def newer(self) -> VocoderData | None:
        """Return better data than the last call did, or None."""
        whole = (self.corpus / "audio.npy").is_file()
        parts = (self.corpus,) if whole else tuple(ready_parts(self.corpus))
        rendered = tuple(part for part in parts if (part / MELS).is_file())
        if rendered:
            if self.with_mels:
                return None
            self.with_mels, self.parts_in_use = True, rendered
            return VocoderData(
                bank=self._bank(rendered), mels=np.concatenate([np.load(part / MELS) for part in rendered])
            )
        if self.parts_in_use and (self.parts_in_use == parts or not (self.corpus / DONE).exists()):
            return None
        self.parts_in_use = parts
        return VocoderData(bank=self._bank(self.parts_in_use))

    def _bank(self, parts: tuple[Path, ...]) -> AudioBank:
        banks = [AudioBank.load(part) for part in parts]
        return banks[0] if len(banks) == 1 else AudioBank.chain(banks)
