"""Language steps, with stubs of the optional packages, which need not be installed."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nightingale.errors import CheckpointError, LanguagePackageMissing, UnsupportedLanguage
from nightingale.install import install_command
from nightingale.text.cangjie import read_cangjie, spell
from nightingale.text.language_steps import STEPS, reading, to_jamo
from nightingale.text.languages import LANGUAGES, check_language
from nightingale.text.tokenizer import MultilingualTokenizer

DATA = Path(__file__).parent / "data"
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
TABLE = ["你\tonf", "好\tvnd", "世\tpt", "界\twoll", "甲\tonf", "乙\tonf\tmore"]


def install(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, module)


def multilingual(folder: Path = DATA) -> MultilingualTokenizer:
    return MultilingualTokenizer(folder / "multilingual_small.json")


@pytest.fixture
def cangjie(tmp_path: Path) -> Path:
    """Make a model folder with a vocabulary and a table of glyphs, and return the table."""
    path = tmp_path / "model" / "Cangjie5_TC.json"
    path.parent.mkdir()
    path.write_text(json.dumps(TABLE, ensure_ascii=False), encoding="utf-8")
    (path.parent / "multilingual_small.json").write_bytes((DATA / "multilingual_small.json").read_bytes())
    return path


def test_there_are_23_languages_and_five_have_a_step_of_their_own() -> None:
    assert len(LANGUAGES) == len(set(LANGUAGES.values())) == 23
    assert set(STEPS) == {"he", "ja", "ko", "ru", "zh"} <= set(LANGUAGES)


@pytest.mark.parametrize(("code", "hint"), [("fre", "fr"), ("French", "fr"), ("germann", "de")])
def test_an_unknown_language_lists_the_codes_and_suggests_one(code: str, hint: str) -> None:
    with pytest.raises(UnsupportedLanguage, match=f"ar, da, .* zh. Did you mean '{hint}'") as caught:
        multilingual().encode("hello", code)
    assert repr(code) in str(caught.value)


def test_a_region_is_left_out() -> None:
    assert [check_language(code) for code in ("pt-BR", "zh_CN", "EN-us")] == ["pt", "zh", "en"]


def test_a_code_like_no_other_gets_no_suggestion() -> None:
    with pytest.raises(UnsupportedLanguage, match="Choose one"):
        check_language("qqq")


@pytest.mark.parametrize(
    ("code", "module", "text"),
    [("zh", "spacy_pkuseg", "你好"), ("ja", "pykakasi", "今日"), ("he", "dicta_onnx", "שלום")],
)
def test_a_missing_language_package_names_an_existing_extra(
    monkeypatch: pytest.MonkeyPatch, cangjie: Path, code: str, module: str, text: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(LanguagePackageMissing, match=re.escape(install_command(code))):
        multilingual(cangjie.parent).encode(text, code)
    assert code in tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]


def test_the_missing_russian_package_is_named_with_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "russian_text_stresser", None)
    with pytest.raises(
        LanguagePackageMissing, match=r"russian-text-stresser.*pip install 'git\+https://"
    ) as caught:
        multilingual().encode("привет", "ru")
    assert install_command("ru") not in str(caught.value)
    assert "U+0301" in str(caught.value)


def test_korean_syllables_become_jamo() -> None:
    assert to_jamo(" 값 ") == "\u1100\u1161\u11b9"
    assert to_jamo("\u1100\u1161") == "\u1100\u1161"


def test_japanese_kanji_are_read_in_hiragana(monkeypatch: pytest.MonkeyPatch) -> None:
    # The answer of pykakasi 2.3 to this sentence in its decomposed form.
    kanji = {"今日は": "こんにちは", "天気": "てんき"}
    written = ["今日は", "天気", "か", "\u3099", "いいて", "\u3099", "すね", "。"]
    segments = [{"orig": word, "hira": kanji.get(word, word)} for word in written]
    install(monkeypatch, "pykakasi", kakasi=lambda: SimpleNamespace(convert=lambda text: segments))
    ids = multilingual().encode("今日は天気がいいですね。", "ja")
    golden = [723, 2164, 2208, 2177, 2171, 2181, 2174, 2208, 2161, 2159, 2160, 2152, 2152, 2174, 2160, 2167]
    assert ids == [*golden, 2179, 2119]


def test_a_japanese_reading_like_a_particle_gets_a_space() -> None:
    assert reading("母", "はは") == " はは"
    assert reading("部屋", "へや") == " へや"
    assert reading("東京", "とうきょう") == "とうきょう"
    assert reading("は", "は") == "は"
    assert reading("カタカナ", "かたかな") == "カタカナ"


def test_chinese_glyphs_are_spelled_by_their_keys_and_rank(cangjie: Path) -> None:
    codes = read_cangjie(cangjie)
    assert spell("你", codes) == "[cj_o][cj_n][cj_f][cj_.]"
    assert spell("甲", codes) == "[cj_o][cj_n][cj_f][cj_1][cj_.]"
    assert spell("乙", codes) == "[cj_o][cj_n][cj_f][cj_2][cj_.]"
    assert spell("龘 a。", codes) == "龘 a。"


def test_chinese_text_is_segmented_and_spelled(
    monkeypatch: pytest.MonkeyPatch, cangjie: Path, tmp_path: Path
) -> None:
    (tmp_path / "pkuseg" / "spacy_ontonotes").mkdir(parents=True)
    monkeypatch.setenv("PKUSEG_HOME", str(tmp_path / "pkuseg"))
    opened: list[str] = []

    def pkuseg(model: str) -> SimpleNamespace:
        opened.append(model)
        return SimpleNamespace(cut=lambda text: [text[:2], text[2:4], text[4:]])

    install(monkeypatch, "spacy_pkuseg", pkuseg=pkuseg)
    tokenizer = multilingual(cangjie.parent)
    words = [747, 746, 738, 2064, 754, 746, 736, 2064, 2, 748, 752, 2064, 755, 747, 744, 744, 2064]
    golden = [725, *words, 2, 2119]
    assert tokenizer.encode("你好世界。", "zh") == golden
    assert tokenizer.encode("你好世界。", "zh") == golden
    # Opened once, and by folder: by name the package would download its model.
    assert opened == [str(tmp_path / "pkuseg" / "spacy_ontonotes")]


def test_a_chinese_segmenter_without_local_files_is_not_downloaded(
    monkeypatch: pytest.MonkeyPatch, cangjie: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("PKUSEG_HOME", str(tmp_path / "empty"))
    install(monkeypatch, "spacy_pkuseg", pkuseg=lambda *_: pytest.fail("opened without files"))
    with pytest.raises(LanguagePackageMissing, match="no model files"):
        multilingual(cangjie.parent).encode("你好", "zh")


@pytest.mark.parametrize("content", [None, "{", "[1]", '["x"]', '{"a": 1}'])
def test_a_missing_or_corrupt_cangjie_table_is_an_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "Cangjie5_TC.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CheckpointError, match=r"Cangjie5_TC\.json"):
        read_cangjie(path)


def test_russian_and_hebrew_marked_by_hand_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "russian_text_stresser", None)
    monkeypatch.setitem(sys.modules, "dicta_onnx", None)
    russian = [716, 1136, 1137, 1130, 1124, 1127, 764, 1139, 7, 2, 1133, 1130, 1137, 9]
    assert multilingual().encode("Приве\u0301т, мир", "ru") == russian
    assert multilingual().encode("שָׁלוֹם", "he") == [2110, 1414, 1373, 1382, 1401, 1394, 1374, 1402, 9]


def test_russian_stress_comes_from_the_package_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    stresser = SimpleNamespace(stress_text=lambda text: text.replace("е", "е\u0301"))
    install(monkeypatch, "russian_text_stresser")
    install(monkeypatch, "russian_text_stresser.text_stresser", RussianTextStresser=lambda: stresser)
    tokenizer = multilingual()
    assert tokenizer.encode("привет", "ru") == [716, 1136, 1137, 1130, 1124, 1127, 764, 1139, 9]


def test_hebrew_points_come_from_the_network_in_the_model_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pointed = "שָׁלוֹם."
    dicta = SimpleNamespace(add_diacritics=lambda text: pointed)
    install(monkeypatch, "dicta_onnx", Dicta=lambda path: dicta)
    (tmp_path / "multilingual_small.json").write_bytes((DATA / "multilingual_small.json").read_bytes())
    with pytest.raises(CheckpointError, match="dicta"):
        multilingual(tmp_path).encode("שלום", "he")
    (tmp_path / "dicta-1.0.int8.onnx").write_bytes(b"")
    ids = multilingual(tmp_path).encode("שלום", "he")
    assert ids == [2110, 1414, 1373, 1382, 1401, 1394, 1374, 1402, 9]
