"""Intonation by punctuation: edits of the pitch and energy curves that Kokoro predicts.

Kokoro ends a question like a statement, but it predicts pitch and energy as curves, which can be edited before the
decoder reads them. A yes/no question rises over its last stressed syllable and what follows; a question with a
question word falls from a higher start; an exclamation has a wider range and more energy. Statements are unchanged.

    contours_of(text)        one contour per sentence
    duration_factors(...)    longer phonemes at the end of a rising sentence
    apply_contours(...)      the edited curves of a batch
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Contour(Enum):
    """The intonation of a sentence."""

    STATEMENT = "statement"
    RISE = "rise"
    FALL = "fall"
    EXCLAMATION = "exclamation"


Contours = Sequence[Contour]
"""The contours of the sentences of one line."""

SENTENCE_ENDS = {4: Contour.STATEMENT, 5: Contour.EXCLAMATION, 6: Contour.RISE, 10: Contour.STATEMENT}
"""Kokoro's ids of the marks that end a sentence."""
MARK_IDS = frozenset(range(17))
"""Kokoro's ids of padding, punctuation marks and the space."""
PRIMARY_STRESS, SECONDARY_STRESS = 156, 157
VOICELESS = frozenset({48, 50, 53, 58, 61, 62, 119, 131, 133})
"""f h k p s t θ ʃ ʧ, which have no pitch."""
MIN_VOICED_HZ, MAX_HZ = 30.0, 400.0
PITCH_FRAMES_PER_TICK = 2
"""Pitch has 80 frames per second, the alignment of phonemes 40."""
MIN_CONTOUR_FRAMES = 20
"""A final contour takes 0.25 s at least."""
MIN_VOICED_FRAMES = 6
FINAL_STRETCH = 1.25
"""Factor on the durations of the last stressed syllable of a rising sentence and what follows."""
WEAK_ENERGY = 2.0
"""Frames whose energy (about a logarithm) is this much below the median carry no audible pitch."""
MAX_SEMITONES = 9.0
"""The largest distance from the median pitch of a sentence."""
_SENTENCE = re.compile(r"[^.!?]*[A-Za-z][^.!?]*[.!?]?")
_QUESTION_WORD = re.compile(
    r"^(?:and|but|so|then|well|oh|now|or)?[\s,]*(?:(?:in|at|to|for|from|with|by|on|of|about|since|under)\s+)?"
    r"(?:what|who|whom|whose|which|when|where|why|how|what's|who's|where's|how's|when's|why's)\b",
    re.IGNORECASE,
)
_ALTERNATIVE = re.compile(r",?\s+or\s+(?!not\b)", re.IGNORECASE)


def contours_of(text: str) -> tuple[Contour, ...]:
    """Return the contour of each sentence of the text."""
    return tuple(_contour(match[0].strip(" \"'")) for match in _SENTENCE.finditer(text))


def _contour(sentence: str) -> Contour:
    if sentence.endswith("!"):
        return Contour.EXCLAMATION
    if not sentence.endswith("?"):
        return Contour.STATEMENT
    last_clause = re.split(r'[",]\s*', sentence)[-1]
    falls = (
        _QUESTION_WORD.match(sentence) or _QUESTION_WORD.match(last_clause) or _ALTERNATIVE.search(sentence)
    )
    return Contour.FALL if falls and len(sentence.split()) > 1 else Contour.RISE


def has_edits(contours: Sequence[Contours]) -> bool:
    """Return whether a sentence of the batch is not a statement."""
    return any(contour is not Contour.STATEMENT for row in contours for contour in row)


def duration_factors(ids: Tensor, contours: Sequence[Contours]) -> Tensor:
    """Return factors of the durations, (batch, phonemes): the end of a rising sentence takes longer."""
    factors = np.ones(tuple(ids.shape), dtype=np.float32)
    phonemes = ids.cpu().numpy()
    for row, row_contours in enumerate(contours):
        for first, end, contour in _sentences(phonemes[row], row_contours):
            if contour is Contour.RISE:
                stressed = _last_stressed(phonemes[row], first, end)
                voiced = [i for i in range(stressed, end) if phonemes[row][i] not in VOICELESS | MARK_IDS]
                factors[row, voiced] = FINAL_STRETCH
    return torch.from_numpy(factors).to(ids.device)


def apply_contours(
    ids: Tensor, ends: Tensor, f0: Tensor, energy: Tensor, contours: Sequence[Contours]
) -> tuple[Tensor, Tensor]:
    """Return the edited f0 and energy, (batch, frames) at 80 Hz.

    ids, ends: (batch, phonemes), the phonemes and the 40 Hz ticks at which they end. contours: those of the
    sentences of each row; where their number differs from that of the sentences in `ids`, the marks decide.
    """
    hz, power = f0.float().cpu().numpy().copy(), energy.float().cpu().numpy().copy()
    phonemes, frames = ids.cpu().numpy(), ends.cpu().numpy() * PITCH_FRAMES_PER_TICK
    for row, row_contours in enumerate(contours):
        for first, end, contour in _sentences(phonemes[row], row_contours):
            if contour is not Contour.STATEMENT:
                _edit_sentence(hz[row], power[row], phonemes[row], frames[row], first, end, contour)
    return torch.from_numpy(hz).to(f0), torch.from_numpy(power).to(energy)


def _sentences(ids: NDArray[np.int64], contours: Contours) -> list[tuple[int, int, Contour]]:
    """Return the first phoneme, the end (exclusive, before the mark) and the contour of each sentence."""
    if all(contour is Contour.STATEMENT for contour in contours):
        return []
    found, first = list[tuple[int, int, Contour]](), 0
    for at, phoneme in enumerate(ids.tolist()):
        if phoneme in SENTENCE_ENDS or at == len(ids) - 1:
            if any(int(p) not in MARK_IDS for p in ids[first:at]):
                found.append((first, at, SENTENCE_ENDS.get(phoneme, Contour.STATEMENT)))
            first = at + 1
    if len(found) == len(contours):
        return [(start, end, contour) for (start, end, _), contour in zip(found, contours, strict=True)]
    return found


def _last_stressed(ids: NDArray[np.int64], first: int, end: int) -> int:
    """Return the index of the last stress mark of a sentence, or of its first phoneme."""
    for mark in (PRIMARY_STRESS, SECONDARY_STRESS):
        found = np.flatnonzero(ids[first:end] == mark)
        if len(found):
            return first + int(found[-1])
    return first


def _edit_sentence(
    hz: NDArray[np.float32],
    power: NDArray[np.float32],
    ids: NDArray[np.int64],
    ends: NDArray[np.int64],
    first: int,
    end: int,
    contour: Contour,
) -> None:
    """Edit the curves of one sentence in place. ends: the pitch frame at which each phoneme ends."""
    while end > first and int(ids[end - 1]) in MARK_IDS:
        end -= 1
    while first < end and int(ids[first]) in MARK_IDS:
        first += 1
    start_frame, end_frame = int(ends[first - 1]) if first else 0, int(ends[end - 1])
    voiced = np.flatnonzero(hz[start_frame:end_frame] > MIN_VOICED_HZ) + start_frame
    if end == first or len(voiced) < MIN_VOICED_FRAMES:
        return
    semitones = 12.0 * np.log2(hz[voiced])
    median = float(np.median(semitones))
    median_power = float(np.median(power[voiced]))
    stressed = _last_stressed(ids, first, end)
    nucleus = int(ends[stressed - 1]) if stressed else start_frame
    last_voiced = end
    while last_voiced > first + 1 and int(ids[last_voiced - 1]) in VOICELESS | MARK_IDS:
        last_voiced -= 1
    audible = voiced[(voiced < ends[last_voiced - 1]) & (power[voiced] > median_power - WEAK_ENERGY)]
    close = int(audible[-1]) if len(audible) else int(voiced[-1])
    nucleus = max(start_frame, min(nucleus, close - MIN_CONTOUR_FRAMES))
    # 0 before the last stressed syllable, 1 at the last audible frame.
    ending = np.clip((voiced - nucleus) / max(1, close - nucleus), 0.0, 1.0)
    position = np.clip((voiced - start_frame) / max(1, close - start_frame), 0.0, 1.0)
    blend = np.clip(3.0 * ending, 0.0, 1.0)
    blend = blend * blend * (3.0 - 2.0 * blend)
    if contour is Contour.RISE:
        target = median - 1.0 + 9.0 * ending
        power[voiced] += blend * np.maximum(0.0, median_power - 0.5 - power[voiced])
    elif contour is Contour.FALL:
        semitones = semitones + 3.0 * (1.0 - position)
        target = median + 2.5 - 7.0 * ending
    else:
        semitones = median + 1.5 + 1.4 * (semitones - median)
        target = median + 5.0 - 9.0 * ending
        power[start_frame:end_frame] += 0.08 * np.abs(power[start_frame:end_frame])
    semitones = (1.0 - blend) * semitones + blend * target
    semitones = np.clip(semitones, median - MAX_SEMITONES, median + MAX_SEMITONES)
    hz[voiced] = np.minimum(2.0 ** (semitones / 12.0), MAX_HZ)
