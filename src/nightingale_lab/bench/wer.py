"""Word error rate by the field's usual rule: Whisper's text normalizer, then jiwer.

The normalizer removes case, punctuation and fillers, expands contractions, writes numbers as digits and
British spellings as American ones. What remains is compared word by word, so "riverbank" for "river bank" is
two errors. The rate of a set is all its errors over all its words.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import groupby

import jiwer
from rapidfuzz.fuzz import ratio

from nightingale.text.english import normalize as speak_english

SAME_WORDS = 80.0
"""Words whose letters agree to this percentage are the same, spelled otherwise."""
NEAR_WORDS = 6
"""A repeated word is one of so many before or after it."""
CLAUSE_END = re.compile(r"(?<=[,;:.!?])\s+")
APOSTROPHES = str.maketrans("’‘ʼ`", "''''")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The word errors of one utterance."""

    words: int
    """Words of the expected text."""
    substitutions: int
    deletions: int
    insertions: int
    lost_tail: int
    """Words missing at the very end: a cut-off."""
    extra_tail: int
    """Words added after the end: a runaway."""

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per expected word; 1 if words were recognized where none were expected."""
        return self.errors / self.words if self.words else float(self.errors > 0)


@cache
def normalizer(language: str) -> Callable[[str], str]:
    """Return Whisper's normalizer for a language; only English has one of its own."""
    from whisper_normalizer.basic import BasicTextNormalizer
    from whisper_normalizer.english import EnglishTextNormalizer

    made: Callable[[str], str] = EnglishTextNormalizer() if language == "en" else BasicTextNormalizer()
    return made


def _words(text: str, language: str) -> str:
    """Return the normalized words. The normalizer knows ASCII apostrophes only, and leaves lone periods."""
    words = normalizer(language)(text.translate(APOSTROPHES)).split()
    return " ".join(word for word in words if any(map(str.isalnum, word)))


def _words_of_clauses(text: str, language: str) -> str:
    words = (_words(clause, language) for clause in CLAUSE_END.split(text))
    return " ".join(word for word in words if word)


def compare(expected: str, transcript: str, language: str = "en") -> Comparison:
    """Count the word errors of a transcript against the expected text."""
    found = jiwer.process_words(_words(expected, language), _words(transcript, language))
    tail, recognized_tail = _tails(expected, transcript)
    return Comparison(
        words=len(found.references[0]),
        substitutions=found.substitutions,
        deletions=found.deletions,
        insertions=found.insertions,
        lost_tail=_unmatched_end(tail, recognized_tail),
        extra_tail=_unmatched_end(recognized_tail, tail),
    )


def skipped_or_repeated(expected: str, transcripts: Sequence[str], language: str = "en") -> int:
    """Count the words that every transcript lacks, or repeats at the same place.

    One recognizer alone is no proof: each of them misses words that were spoken. Words that are only spelled
    otherwise, joined or split ("river bank", "riverbank") are neither. Clauses are normalized one by one, because
    Whisper's normalizer adds up the numbers of "three hundred thousand, four hundred thousand".
    """
    agreed = [_omissions_and_repetitions(expected, transcript, language) for transcript in transcripts]
    return reduce(operator.and_, agreed).total() if agreed else 0


def _omissions_and_repetitions(
    expected: str, transcript: str, language: str
) -> Counter[tuple[str, int, str]]:
    """Return (kind, place in the expected text, expected word) of each."""
    found = jiwer.process_words(
        _words_of_clauses(expected, language), _words_of_clauses(transcript, language)
    )
    words, recognized = found.references[0], found.hypotheses[0]
    result: Counter[tuple[str, int, str]] = Counter()
    for _, run in groupby(found.alignments[0], key=lambda chunk: chunk.type == "equal"):
        chunks = list(run)
        spelled = "".join(words[chunks[0].ref_start_idx : chunks[-1].ref_end_idx])
        recognized_letters = "".join(recognized[chunks[0].hyp_start_idx : chunks[-1].hyp_end_idx])
        if ratio(spelled, recognized_letters) >= SAME_WORDS:
            continue
        for chunk in chunks:
            if chunk.type == "delete":
                result.update(
                    ("skipped", at, words[at]) for at in range(chunk.ref_start_idx, chunk.ref_end_idx)
                )
            elif chunk.type == "insert":
                near = words[max(0, chunk.ref_start_idx - NEAR_WORDS) : chunk.ref_start_idx + NEAR_WORDS]
                for word in recognized[chunk.hyp_start_idx : chunk.hyp_end_idx]:
                    same = max(near, key=lambda other: ratio(word, other), default="")
                    if ratio(word, same) >= SAME_WORDS:
                        result[("repeated", chunk.ref_start_idx, same)] += 1
    return result


def _tails(expected: str, transcript: str) -> tuple[list[str], list[str]]:
    """Return what follows the last word that agrees. Numbers are written as words: "94s" is "ninety fours"."""
    spoken = [" ".join(re.findall(r"\w+", speak_english(text).lower())) for text in (expected, transcript)]
    found = jiwer.process_words(spoken[0], spoken[1])
    last = [chunk for chunk in found.alignments[0] if chunk.type == "equal"][-1:]
    words, recognized = found.references[0], found.hypotheses[0]
    return words[last[0].ref_end_idx if last else 0 :], recognized[last[0].hyp_end_idx if last else 0 :]


def _unmatched_end(words: Sequence[str], others: Sequence[str]) -> int:
    """Return how many words follow the one that is most similar to the last of the others.

    Both are what comes after the last word that agrees. "her attractions" recognized as "retractions" has
    lost "her", not its end; words written apart or joined have lost nothing.
    """
    if len(words) <= len(others) or "".join(words) == "".join(others):
        return 0
    if not others:
        return len(words)
    places = range(len(others) - 1, len(words))
    return len(words) - 1 - max(places, key=lambda place: ratio(words[place], others[-1]))


def corpus_rate(comparisons: Iterable[Comparison]) -> float:
    """Return all errors over all expected words."""
    kept = list(comparisons)
    words = sum(item.words for item in kept)
    return sum(item.errors for item in kept) / words if words else 0.0
