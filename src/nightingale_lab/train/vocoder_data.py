"""The training data of the vocoder: the corpus as it grows, and finally the mels of the flow.

Training starts on the first part of the corpus, while the others are still synthesized, and continues with all
parts when they are complete. When some parts have mels of the flow (`mels.npy`), it continues with these parts
and mels, since they are the vocoder's input at inference. Recordings of people, if there are any, are one more part.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nightingale_lab.train.bank import AudioBank
from nightingale_lab.train.corpus import HUMAN, parts_with_people

DONE, MELS = "done", "mels.npy"
"""Files: a marker of a complete corpus; the mels of a part, (frames, 80) float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocoderData:
    """Audio, which of its clips are band-limited, and for the last phase the mels of the flow."""

    bank: AudioBank
    limited: NDArray[np.bool_]
    mels: NDArray[np.float16] | None = None


class VocoderDataSource:
    """The best data in a corpus folder at any time."""

    def __init__(self, corpus: Path) -> None:
        self.corpus = corpus
        self.parts_in_use: tuple[Path, ...] = ()
        self.mels_in_use: list[int] = []
        """When the mels in use were written."""

    def current(self) -> VocoderData:
        """Return the best data that there is."""
        return self.newer() or self._data(self.parts_in_use)

    def newer(self) -> VocoderData | None:
        """Return better data than the last call did, or None."""
        whole = (self.corpus / "audio.npy").is_file()
        parts = (self.corpus,) if whole else tuple(parts_with_people(self.corpus))
        rendered = tuple(part for part in parts if (part / MELS).is_file())
        if rendered:
            # A better flow may have written them again, all at once.
            written = [(part / MELS).stat().st_mtime_ns for part in rendered]
            if written == self.mels_in_use:
                return None
            self.mels_in_use, self.parts_in_use = written, rendered
            return self._data(rendered, with_mels=True)
        if self.parts_in_use and (self.parts_in_use == parts or not (self.corpus / DONE).exists()):
            return None
        self.parts_in_use = parts
        return self._data(parts)

    def _data(self, parts: tuple[Path, ...], *, with_mels: bool = False) -> VocoderData:
        banks = [AudioBank.load(part) for part in parts]
        limited = [np.full(bank.clips, part.name == HUMAN) for bank, part in zip(banks, parts, strict=True)]
        return VocoderData(
            bank=banks[0] if len(banks) == 1 else AudioBank.chain(banks),
            limited=np.concatenate(limited),
            mels=np.concatenate([np.load(part / MELS) for part in parts]) if with_mels else None,
        )
