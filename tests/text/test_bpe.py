"""The reader of `tokenizer.json` gives the ids of the `tokenizers` package.

Vocabularies of each supported kind are trained here; wren's is the shipped file.
"""

from __future__ import annotations

import json
import random
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cpu_time import cpu_seconds
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from nightingale import wren
from nightingale.errors import CheckpointError, ConfigError
from nightingale.text.bpe import CACHED_WORD_CHARS, BPETokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the other dogs don't mind at all.",
    "They'll say it's 10,000 miles; we've counted 42! 'Twas 3rd. I'd bet you're the one.",
    "Ça va très bien, merci. Größe: fünfzig Äpfel. ¿Dónde está la biblioteca?",
    "Привет, как дела? Καλημέρα κόσμε. नमस्ते दुनिया। 안녕하세요 세계. مرحبا بك. שלום עולם",
    "日本語のテキスト。你好，世界！ İstanbul'da x² + ½ = Ⅷ Ⓐ ‿ 🎉 👩‍👩‍👧 🇩🇪",
]
TEXTS = [
    "",
    " ",
    "   \t\n  ",
    "a",
    *CORPUS,
    "two  spaces, three   spaces, a tab\tand\na line  \n\n end ",
    " \u00a0no\u00a0break\u2003em\u3000wide\u0085next\u001cseparator\u200bzero",
    "[SPACE]", "[SPACE][SPACE]", "a[SPACE]b", "[space]", "[SPA", "[SPACE", "SPACE]", "[[SPACE]]", "[STOP][START]",
    "hi [laugh] there", "hi[laugh]there", "  [laugh]  ", "[laugh][laughter]", "[clear throat] x", "[LAUGH]",
    "<|endoftext|>", "a<|endoftext|> b", "<|endoftext|",
    "I couldn't. SHE WOULDN'T! You needn't, they shan't; couldn't've",
    "don't DON'T 's 'll ''s ' s it's'", "Σίσυφος ΟΔΥΣΣΕΥΣ ς", "ﬁ ǅ ß ẞ ŉ İ ı",
    "e\u0301 e\u0301\u0327 \u0301start n\u0303 \u1100\u1161\u11a8 क्षि", "Z̷̢̛a͟l̀g͠o", "\u200d\u200c a\u200db",
    "👍🏽 👨‍👩‍👧‍👦 ❤️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣", "①②③ ⅔ ٣٤٥ १२३ 一二三 ㈠", "ⓐⒷ🅰🄰🅐", "__init__ snake_case a‿b",
    "http://example.org/?q=a&b=c#d", "x" * 500, "the" * 200, "." * 300, "ab " * 200,
    "\x00\x01\x7f\ufeff\ufffd\U0010ffff",
]  # fmt: skip


def trained(pre_tokenizer: Any, normalizer: Any, unknown: str | None, first: list[str]) -> Tokenizer:
    """Return a small vocabulary of the corpus with `first` as its first ids."""
    tokenizer = Tokenizer(models.BPE(unk_token=unknown))
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    byte_level = isinstance(pre_tokenizer, pre_tokenizers.ByteLevel)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=first,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if byte_level else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


@cache
def vocabulary(kind: str) -> Tokenizer:
    """Return the reference tokenizer of one kind."""
    tags = ["[STOP]", "[UNK]", "[SPACE]", "[START]", "[laugh]", "[laughter]", "[en]"]
    lower = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    match kind:
        case "wren":
            return Tokenizer.from_file(str(Path(wren.__file__).parent / wren.FILES["tokenizer"]))
        case "graphemes":
            return trained(pre_tokenizers.Whitespace(), None, "[UNK]", tags)
        case "lowercase":
            return trained(pre_tokenizers.Whitespace(), lower, "[UNK]", tags)
        case "normalized tags":
            tokenizer = trained(pre_tokenizers.Whitespace(), lower, "[UNK]", tags[:4])
            tokenizer.add_tokens([AddedToken("[LAUGH]", normalized=True), "[Élan]"])
            return tokenizer
        case "no pre-tokenizer":
            return trained(None, lower, "[UNK]", tags)
        case "no unknown token":
            return trained(pre_tokenizers.Whitespace(), normalizers.Lowercase(), None, ["[SPACE]"])
        case "byte level" | "byte level with prefix space":
            prefix = kind != "byte level"
            tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=prefix), None, None, [])
            tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
            tokenizer.add_tokens(["[laugh]", AddedToken("[laughter]"), "[clear throat]"])
            return tokenizer
        case "byte level with stripping tags":
            tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), None, None, [])
            tokenizer.add_tokens([AddedToken("[laugh]", lstrip=True, rstrip=True)])
            tokenizer.add_tokens([AddedToken("[laughter]", lstrip=True), AddedToken("[SPACE]", rstrip=True)])
            return tokenizer
    raise ValueError(kind)


KINDS = (
    "wren", "graphemes", "lowercase", "normalized tags", "no pre-tokenizer", "no unknown token",
    "byte level", "byte level with prefix space", "byte level with stripping tags",
)  # fmt: skip


@cache
def reader(kind: str) -> BPETokenizer:
    return BPETokenizer(json.loads(vocabulary(kind).to_str()))


def new_mark(character: str) -> bool:
    """Return whether the package, whose tables are older than Python's, does not know this mark as one.

    It keeps such a mark where `StripAccents` should remove it, so an unknown token follows.
    """
    stripped = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]).normalize_str(character)
    ours = "".join(c for c in unicodedata.normalize("NFD", character) if unicodedata.category(c)[0] != "M")
    return bool(stripped != ours)


def assigned_characters(step: int) -> list[str]:
    """Return every `step`-th character that this Python's Unicode version has."""
    characters = map(chr, range(0, 0x110000, step))
    return [c for c in characters if unicodedata.category(c) not in ("Cn", "Cs") and not new_mark(c)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_ids_are_those_of_the_package(kind: str, text: str) -> None:
    assert reader(kind).encode(text) == vocabulary(kind).encode(text).ids


@pytest.mark.parametrize("kind", KINDS)
def test_random_mixtures_have_the_ids_of_the_package(kind: str) -> None:
    draw = random.Random(kind)
    pools = [
        list(vocabulary(kind).get_vocab()),
        [token.content for token in vocabulary(kind).get_added_tokens_decoder().values()],
        assigned_characters(step=97),
        list("etaoinshrdlu'.,!?"),
        [" ", "  ", "\n", "\t", "\x1c", "\x85", "\u3000", "\xa0", "'s", "'ll"],
    ]
    for _ in range(1500):
        text = "".join(draw.choice(draw.choice(pools)) for _ in range(draw.randrange(30)))
        assert reader(kind).encode(text) == vocabulary(kind).encode(text).ids, repr(text)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["wren", "graphemes", "byte level"])
def test_every_kind_of_character_is_classified_as_in_the_package(kind: str) -> None:
    for character in assigned_characters(step=7):
        text = f"a{character}e{character}{character} {character}"
        assert reader(kind).encode(text) == vocabulary(kind).encode(text).ids, hex(ord(character))


@given(text=st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_text_has_the_ids_of_the_package(text: str) -> None:
    for kind in ("graphemes", "byte level"):
        assert reader(kind).encode(text) == vocabulary(kind).encode(text).ids


def test_half_a_surrogate_pair_is_dropped() -> None:
    assert reader("graphemes").encode("th\ud83de") == reader("graphemes").encode("the")


def test_a_word_that_is_too_long_to_be_cached_has_the_same_ids() -> None:
    for length in range(CACHED_WORD_CHARS - 2, CACHED_WORD_CHARS + 3):
        text = ("othermind" * length)[:length]
        assert reader("graphemes").encode(text) == vocabulary("graphemes").encode(text).ids


@pytest.mark.parametrize("kind", ["wren", "byte level"])
def test_a_word_of_twenty_thousand_letters_takes_linear_time(kind: str) -> None:
    draw, encode = random.Random(0), reader(kind).encode

    def seconds(letters: int) -> float:
        word = "".join(draw.choice("etaoinshrdlu") for _ in range(letters))
        return cpu_seconds(lambda: encode(word))

    # Quadratic time would be a factor of 400.
    long, short = (min(seconds(letters) for _ in range(5)) for letters in (20_000, 1_000))
    assert long < 100 * max(short, 1e-3)


def parsed(kind: str = "graphemes") -> dict[str, Any]:
    content: dict[str, Any] = json.loads(vocabulary(kind).to_str())
    return content


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("normalizer", {"type": "NFKC"}, "normalizer NFKC"),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "Prepend"}]}, "normalizer Prepend"),
        (
            "normalizer",
            {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"},
            "normalizer Replace Regex",
        ),
        ("pre_tokenizer", {"type": "Metaspace"}, "pre_tokenizer Metaspace"),
        ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}, "use_regex"),
        ("post_processor", {"type": "TemplateProcessing"}, "post_processor TemplateProcessing"),
        ("truncation", {"max_length": 8}, "truncation"),
        ("padding", {"strategy": "BatchLongest"}, "padding"),
    ],
)
def test_a_part_of_another_kind_is_refused_by_name(part: str, value: object, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        BPETokenizer({**parsed(), part: value})


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("type", "WordPiece", "model WordPiece"),
        ("dropout", 0.1, "model dropout"),
        ("fuse_unk", True, "model fuse_unk"),
        ("byte_fallback", True, "model byte_fallback"),
        ("ignore_merges", True, "model ignore_merges"),
        ("continuing_subword_prefix", "##", "model continuing_subword_prefix"),
        ("end_of_word_suffix", "</w>", "model end_of_word_suffix"),
    ],
)
def test_a_model_setting_without_support_is_refused_by_name(setting: str, value: object, named: str) -> None:
    content = parsed()
    content["model"][setting] = value
    with pytest.raises(ConfigError, match=named):
        BPETokenizer(content)


def test_an_added_token_that_must_be_a_single_word_is_refused() -> None:
    content = parsed()
    content["added_tokens"][0]["single_word"] = True
    with pytest.raises(ConfigError, match="single_word"):
        BPETokenizer(content)


def test_an_added_token_with_another_id_than_in_the_vocabulary_is_refused() -> None:
    content = parsed()
    content["added_tokens"][0]["id"] = 5
    with pytest.raises(CheckpointError, match=r"'\[STOP\]' as 5"):
        BPETokenizer(content)


@pytest.mark.parametrize("merge", ["q z", ["q"], "t h e"])
def test_a_merge_outside_the_vocabulary_is_a_checkpoint_error(tmp_path: Path, merge: object) -> None:
    content = parsed()
    content["model"]["merges"].append(merge)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        BPETokenizer.from_file(tmp_path / "tokenizer.json")
