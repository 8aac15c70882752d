"""Text data, prepared on a CPU: lines, their phonemes, wren's vocabulary.

gather           free text and templates -> unique clean lines, without the test sentences
phoneme_ids      lines -> ids of Kokoro's phonemes, by hibari's front end
Lines            both in one small file for the GPU machine
train_vocabulary lines -> byte pairs in the family's tokenizer format
"""

from __future__ import annotations

import io
import json
import random
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nightingale.errors import ConfigError
from nightingale_lab.train.alignment import SPACE_PHONEME
from nightingale_lab.train.hard_examples import HardExamples
from nightingale_lab.train.teachers.hibari import phonemize_all, read_vocabulary
from nightingale_lab.train.templates import TemplateWriter
from nightingale_lab.train.texts import Exclusion, book_lines, clean, missing_words, unique, vocabulary

MAX_PHONEMES = 460
"""Kokoro's style table has 510 rows; the rest is a margin for its start and stop."""

MARKS = "!\"',-.:;?"
MARK_IDS: Final = {mark: 3 + place for place, mark in enumerate(MARKS)}
"""Text ids of the marks, which follow those of [STOP], [UNK] and [SPACE]."""
MARK_PHONEMES: Final = {";": 1, ":": 2, ",": 3, ".": 4, "!": 5, "?": 6}
LETTER_NAMES: Final = {
    "A": "ˈA", "B": "bˈi", "C": "sˈi", "D": "dˈi", "E": "ˈi", "F": "ˈɛf", "G": "ʤˈi", "H": "ˈAʧ", "I": "ˈI",
    "J": "ʤˈA", "K": "kˈA", "L": "ˈɛl", "M": "ˈɛm", "N": "ˈɛn", "O": "ˈO", "P": "pˈi", "Q": "kjˈu", "R": "ˈɑɹ",
    "S": "ˈɛs", "T": "tˈi", "U": "jˈu", "V": "vˈi", "W": "dˈʌbᵊlju", "X": "ˈɛks", "Y": "wˈI", "Z": "zˈi",
}  # fmt: skip
BRITISH_LETTER_NAMES: Final = {"O": "ˈQ", "R": "ˈɑː", "Z": "zˈɛd"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
START_ID = 255
"""The id of [START] in the family."""


def gather(
    sentence_files: Sequence[Path],
    book_files: Sequence[Path],
    *,
    held_out: Sequence[str],
    frequent_words: Sequence[str],
    rare_words: Sequence[str],
    book_share: float,
    generated: int,
    seed: int,
    hard_examples: int = 0,
    names: Sequence[str] = (),
) -> list[str]:
    """Return all training lines, shuffled. Templates add `frequent_words` that free text lacks.

    Only `book_share` of the lines of books are used, so that they do not dominate. hard_examples: number of patterns
    of hard_examples.py to add, some with `names`.
    """
    rng = random.Random(seed)
    excluded, seen = Exclusion(held_out), set[str]()
    raw = (line for path in sentence_files for line in path.read_text(encoding="utf-8").splitlines())
    lines = list(unique((c for c in map(clean, raw) if c), excluded=excluded, seen=seen))
    chapters = (line for path in book_files for line in book_lines(path.read_text(encoding="utf-8"), rng))
    lines += unique((c for c in chapters if rng.random() < book_share), excluded=excluded, seen=seen)
    missing = missing_words(vocabulary(lines), frequent_words)
    # Missing words get three lines each; `rare_words` add variety to the templates.
    writer = TemplateWriter(rng, [*missing, *rare_words])
    forced = (writer.about(word) for word in missing for _ in range(3))
    lines += unique(forced, excluded=excluded, seen=seen)
    # One- and two-word lines repeat often, so more are generated than requested.
    for line in unique(writer.lines(3 * generated), excluded=excluded, seen=seen):
        if generated == 0:
            break
        lines.append(line)
        generated -= 1
    # Of the hard examples, the same words with another mark are another line.
    made = HardExamples(rng, lines, frequent_words, names).lines(hard_examples)
    known = set(lines)
    lines += [line for line in dict.fromkeys(made) if line not in known and not excluded.hits(line)]
    rng.shuffle(lines)
    return lines


def phoneme_ids(
    lines: Sequence[str], hibari: Path, *, british: bool = False, workers: int = 2
) -> Iterator[NDArray[np.uint8]]:
    """Yield Kokoro's ids of each line, without padding; none where the line is too long."""
    vocabulary = read_vocabulary(hibari)
    names = {**LETTER_NAMES, **(BRITISH_LETTER_NAMES if british else {})}
    letters = {letter: [vocabulary[c] for c in name if c in vocabulary] for letter, name in names.items()}
    phonemized = phonemize_all(lines, hibari, workers=workers, british=british)
    for line, parts in zip(lines, phonemized, strict=True):
        ids = [phoneme for part in parts for phoneme in (SPACE_PHONEME, *part)][1:]
        ids = correct_phonemes(line, ids, letters)
        yield np.asarray(ids if len(ids) <= MAX_PHONEMES else [], dtype=np.uint8)


def correct_phonemes(text: str, ids: list[int], letters: Mapping[str, Sequence[int]]) -> list[int]:
    """Return the phonemes of a line with the names of its single letters, and with its final mark.

    The front end reads the A of "C I A" as the article, and drops the mark after a last letter as that of an
    abbreviation. letters: phonemes of the name of each letter.
    """
    words, spoken = text.split(" "), _split_words(ids)
    if len(words) == len(spoken):
        single = [re.fullmatch(r"\W*[A-Z]\W*", word) is not None for word in words]
        for at, word in enumerate(words):
            letter = re.sub("[^A-Za-z]", "", word)
            in_group = (at and single[at - 1]) or (at + 1 < len(words) and single[at + 1])
            if single[at] and letter in letters and (in_group or letter not in "AI"):
                mark = MARK_PHONEMES.get(word[-1:])
                spoken[at] = [*letters[letter], *([mark] if mark else [])]
        ids = [phoneme for word in spoken for phoneme in (SPACE_PHONEME, *word)][1:]
    mark = MARK_PHONEMES.get(text.rstrip("\"'")[-1:])
    return [*ids, mark] if mark and ids and ids[-1] not in MARK_PHONEMES.values() else ids


def _split_words(ids: Sequence[int]) -> list[list[int]]:
    words: list[list[int]] = [[]]
    for phoneme in ids:
        if phoneme == SPACE_PHONEME:
            words.append([])
        else:
            words[-1].append(phoneme)
    return [word for word in words if word]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Texts with their phoneme ids. `british` has ids for some lines only; its other rows are empty."""

    texts: list[str]
    american: list[NDArray[np.uint8]]
    british: list[NDArray[np.uint8]]

    def __len__(self) -> int:
        return len(self.texts)

    def write(self, path: Path) -> None:
        """Write an npz with LZMA compression: a third smaller than deflate, and numpy can read it."""
        arrays = {"texts": np.frombuffer("\n".join(self.texts).encode(), dtype=np.uint8)}
        for name, rows in (("american", self.american), ("british", self.british)):
            arrays[name] = np.concatenate([np.zeros(0, np.uint8), *rows])
            arrays[f"{name}_lengths"] = np.asarray([len(row) for row in rows], dtype=np.uint16)
        part = path.with_suffix(".part")
        with zipfile.ZipFile(part, "w", zipfile.ZIP_LZMA) as archive:
            for name, array in arrays.items():
                buffer = io.BytesIO()
                np.lib.format.write_array(buffer, array, allow_pickle=False)
                archive.writestr(f"{name}.npy", buffer.getvalue())
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> Lines:
        with np.load(path, allow_pickle=False) as stored:
            texts = stored["texts"].tobytes().decode().split("\n")
            rows = {
                name: np.split(stored[name], np.cumsum(stored[f"{name}_lengths"].astype(np.int64))[:-1])
                for name in ("american", "british")
            }
        if len(texts) != len(rows["american"]):
            raise ConfigError(
                "texts and phonemes do not match",
                got=f"{len(texts)} texts, {len(rows['american'])} phoneme rows in {path}",
                allowed="equal numbers",
                fix="Build the file again.",
            )
        return cls(texts=texts, american=rows["american"], british=rows["british"])


def train_vocabulary(lines: Iterable[str], *, size: int = 512) -> str:
    """Return a tokenizer file of `size` ids: [STOP] [UNK] [SPACE], marks, letters, then merges in their order.

    It is trained on words only, so a mark never merges with a letter, and a word has the same ids whatever
    punctuation follows.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fixed = ["[STOP]", "[UNK]", "[SPACE]", *MARKS, *LETTERS]
    merged_size = size - len(fixed) - 1 + len(LETTERS)
    trainer = trainers.BpeTrainer(vocab_size=merged_size, initial_alphabet=list(LETTERS), show_progress=False)
    counted = vocabulary(lines)
    words = (" ".join([word.replace("'", " ")] * min(count, 4000)) for word, count in counted.items())
    tokenizer.train_from_iterator(words, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    names = fixed + [merge.replace(" ", "") for merge in merges]
    names.insert(START_ID, "[START]")
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": names.index(name), "content": name, **special}
                for name in ("[STOP]", "[UNK]", "[SPACE]", "[START]")
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": None,
            "decoder": None,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": "[UNK]",
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "vocab": {name: number for number, name in enumerate(names)},
                "merges": merges,
            },
        },
        ensure_ascii=False,
        indent=1,
    )
