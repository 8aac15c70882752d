"""Parts of a batch without Ray: rows and their hashes, the worker with a real engine, records and dead letters."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from nightingale import TTS
from nightingale.engine.requests.whole import audio_of
from nightingale.errors import ConfigError, OutputError
from nightingale.ray import batch_worker
from nightingale.ray.batch_output import BatchOutput
from nightingale.ray.batch_rows import prepare_row, split_units
from nightingale.ray.batch_run import BatchSettings, check_settings
from nightingale.ray.batch_tally import SETTLED, Tally
from nightingale.ray.batch_worker import BatchWorker, SpokenRow, encode, flags_of, record_of, speak_rows

DEFAULTS = {"format": "flac"}


def row_of(text: Any = "Hello.", **more: Any) -> dict[str, Any]:
    return prepare_row({"text": text, **more}, DEFAULTS, "noise")


def test_the_hash_of_a_row_depends_on_all_that_changes_its_audio() -> None:
    same = row_of()["key"]
    assert row_of(id="another")["key"] == same
    changed = [
        row_of("Hello!"),
        row_of(seed=1),
        row_of(voice="anna"),
        row_of(speed=1.5),
        prepare_row({"text": "Hello."}, {"format": "wav"}, "noise"),
        prepare_row({"text": "Hello."}, DEFAULTS, "wren"),
        prepare_row({"text": "Hello."}, {"format": "flac", "voice": "bert"}, "noise"),
    ]
    assert len({same, *(row["key"] for row in changed)}) == len(changed) + 1


def test_a_row_without_an_id_or_a_seed_gets_them_from_its_hash() -> None:
    row = row_of()
    assert row["id"] == row["key"]
    assert 0 <= json.loads(row["request"])["seed"] < 1 << 31
    assert json.loads(row_of(seed=5)["request"])["seed"] == 5
    assert row_of(id=7)["id"] == "7"


def test_columns_have_other_names_and_empty_fields_count_as_missing() -> None:
    row = prepare_row({"text": "", "input": "Hi.", "voice": float("nan"), "speed": None}, DEFAULTS, "noise")
    assert (row["text"], row["error"]) == ("Hi.", "")
    assert set(json.loads(row["request"])) == {"seed"}


@pytest.mark.parametrize(
    ("row", "reason"), [({"text": " "}, "no text"), ({}, "no text"), ({"text": 3}, "no text")]
)
def test_a_row_without_text_says_so(row: dict[str, Any], reason: str) -> None:
    assert reason in prepare_row(row, DEFAULTS, "noise")["error"]


def test_a_column_that_is_no_number_is_named() -> None:
    assert "'speed' is not a number" in row_of(speed="fast")["error"]


def test_a_long_text_is_split_between_paragraphs_and_nothing_is_lost() -> None:
    paragraphs = [f"Paragraph {number}. " + "Some more words. " * 20 for number in range(12)]
    units = split_units("\n\n".join(paragraphs))
    assert 3 <= len(units) <= 12
    assert "".join("".join(units).split()) == "".join("".join(paragraphs).split())
    assert split_units("A short text.\n\nIn two parts.") == ["A short text.\n\nIn two parts."]


def test_rows_are_spoken_in_order_and_each_is_what_the_engine_says_alone(brief: TTS) -> None:
    rows = [row_of(f"Sentence {number}.") for number in range(3 * brief.at_once)]
    spoken = list(speak_rows(brief, rows))
    assert [one.row for one in spoken] == rows
    for one in (spoken[0], spoken[-1]):
        seed = json.loads(one.row["request"])["seed"]
        alone = audio_of(session := brief.open(one.row["text"], seed=seed), session.chunks())
        assert alone.sha256 == one.parts[0].sha256


def test_a_row_that_fails_does_not_disturb_the_others(brief: TTS) -> None:
    rows = [row_of("One."), row_of("Two.", voice="nosuch"), row_of("Three.", temperature=-5), row_of("Four.")]
    records = [record_of(one, brief.sample_rate_hz)[0] for one in speak_rows(brief, rows)]
    assert ["error" if record["error"] else "ok" for record in records] == ["ok", "error", "error", "ok"]
    assert "no such voice" in records[1]["error"]
    assert brief.occupancy.speaking == brief.occupancy.waiting == 0


def test_a_split_text_is_joined_with_pauses(brief: TTS) -> None:
    text = "\n\n".join(f"Paragraph {number}. " + "Some more words. " * 40 for number in range(4))
    (spoken,) = speak_rows(brief, [row_of(text)])
    record, samples = record_of(spoken, 24_000)
    assert record["parts"] == len(spoken.parts) == 4
    assert len(samples) == sum(len(part.samples) for part in spoken.parts) + 3 * round(0.3 * 24_000)


def test_silence_is_a_failure_and_never_written(brief: TTS) -> None:
    (spoken,) = speak_rows(brief, [row_of()])
    silent = SpokenRow(spoken.row, parts=[_silent(part) for part in spoken.parts], units=1)
    record, _ = record_of(silent, 24_000)
    assert "silence" in record["error"]


def _silent(part: Any) -> Any:
    from dataclasses import replace

    return replace(part, samples=np.zeros_like(part.samples))


def test_flags_name_what_a_listener_should_check() -> None:
    text = "x" * 100
    assert flags_of(text, 7.0, 0.5, 0) == []
    assert flags_of(text, 60.0, 1.0, 2) == ["retried", "clipped", "slow"]
    assert flags_of(text, 1.0, 0.5, 0) == ["fast"]
    assert flags_of("Hi.", 3.0, 0.5, 0) == [], "a short text says little"


@pytest.mark.parametrize("file_format", batch_worker.FORMATS)
def test_files_can_be_read_again(file_format: str) -> None:
    if file_format != "wav":
        pytest.importorskip("av")
    wave = (0.3 * np.sin(np.arange(24_000) / 20)).astype(np.float32)
    read, rate_hz = soundfile.read(io.BytesIO(encode(wave, file_format, 24_000)))
    assert abs(len(read) / rate_hz - 1.0) < 0.05
    assert 0.2 < np.abs(read).max() < 0.5


@pytest.fixture
def worker(brief: TTS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., BatchWorker]:
    pytest.importorskip("fsspec")
    pytest.importorskip("pydantic_settings")
    monkeypatch.setattr("nightingale.server.service.model_loading.load_engine", lambda _: brief)

    def make(tally: Tally | None = None, *, shards: bool = False) -> BatchWorker:
        return BatchWorker({}, str(tmp_path / "out"), "wav", shards, tally or Tally())

    return make


def batch_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def test_a_batch_becomes_files_records_a_manifest_and_dead_letters(
    worker: Callable[..., BatchWorker], tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    tally = Tally()
    rows = [row_of("One.", id="1"), row_of("", id="2"), row_of("Three.", id="3")]
    worker(tally)(batch_of(rows))
    output = BatchOutput(str(tmp_path / "out"))
    assert output.finish() == (2, 1)
    lines = [json.loads(line) for line in output.read("manifest.jsonl").splitlines()]
    assert [line["id"] for line in lines] == ["1", "3"]
    for line in lines:
        info = soundfile.info(tmp_path / "out" / line["file"])
        assert abs(info.duration - line["seconds"]) < 1e-6
    (dead,) = [json.loads(line) for line in output.read("dead-letter.jsonl").splitlines()]
    assert dead["id"] == "2"
    assert "no text" in dead["error"]
    assert tally.totals()["rows"] == 3
    assert tally.totals()["failed"] == 1


def test_a_row_that_failed_and_was_spoken_later_is_no_dead_letter(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("pyarrow")
    output = BatchOutput(str(tmp_path))
    failed = {"id": "1", "key": "k", "text": "a", "seconds": 0.0, "error": "no"}
    for order in ([failed, {**failed, "error": ""}], [{**failed, "error": ""}, failed]):
        for record in order:
            output.write_records([record])
        assert output.finish() == (1, 0)


def test_shards_hold_the_files_of_a_batch(worker: Callable[..., BatchWorker], tmp_path: Path) -> None:
    rows = [row_of(f"Sentence {number}.") for number in range(3)]
    worker(shards=True)(batch_of(rows))
    (record, *_) = BatchOutput(str(tmp_path / "out")).records()
    with tarfile.open(tmp_path / "out" / record["shard"]) as archive:
        assert sorted(archive.getnames()) == sorted(f"{row['key']}.wav" for row in rows)


def test_a_row_that_ends_its_worker_three_times_is_a_dead_letter_and_the_others_are_spoken(
    worker: Callable[..., BatchWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Death(BaseException):
        """The end of a process."""

    real, tally, deaths = BatchWorker._speak, Tally(), 0

    def speak(self: BatchWorker, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if any(row["text"] == "Poison." for row in rows):
            raise Death
        return real(self, rows)

    monkeypatch.setattr(BatchWorker, "_speak", speak)
    batch = batch_of([row_of(text) for text in ("One.", "Poison.", "Three.")])
    for _ in range(10):
        try:
            worker(tally)(batch)
            break
        except Death:
            deaths += 1
    records = list(BatchOutput(str(tmp_path / "out")).records())
    assert deaths == batch_worker.MAX_DEATHS
    assert {r["text"]: bool(r["error"]) for r in records} == {"One.": False, "Poison.": True, "Three.": False}
    assert len(records) == 3, "a row was spoken twice"


def test_equal_rows_in_several_batches_do_not_accuse_each_other() -> None:
    tally = Tally()
    assert [tally.begin([row_of()["row"]]) for _ in range(5)] == [[0]] * 5
    tally.settle("a")
    assert tally.begin(["a", "b"]) == [SETTLED, 0]


def test_a_full_or_forbidden_output_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OutputError, match="run the same command again"):
        BatchOutput(str(tmp_path / "file" / "out")).check()
    BatchOutput(str(tmp_path / "new" / "out")).check()
    assert not list((tmp_path / "new" / "out").iterdir())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"source": "nowhere.jsonl"}, "does not exist"),
        ({"source": __file__}, "unknown kind of input"),
        ({"source": ".", "file_format": "mp3"}, "unknown audio format"),
    ],
)
def test_mistakes_are_found_before_a_cluster_is_asked(changes: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_settings(BatchSettings(**{"out": "out", **changes}))
