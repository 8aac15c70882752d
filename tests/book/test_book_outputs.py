"""The files of `nightingale book`: M4B, chapters, levels, captions and read-along EPUBs."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from book_runs import DOCUMENTS, decoded, facts, make, report
from sample_books import png, write_epub
from typer.testing import CliRunner

from nightingale import TTS
from nightingale.book import passages, timeline
from nightingale.cli.commands import app


def test_an_m4b_has_chapters_a_cover_and_tags() -> None:
    found = facts("sea.epub", "-o", "sea.m4b")
    assert found["sentences"] == {"spoken": 7, "drawn again": 0, "failed": 0}
    with av.open("sea.m4b") as container:
        marks = container.chapters()
        assert [mark["metadata"]["title"] for mark in marks] == ["one", "two", "three"]
        starts = [float(mark["start"] * mark["time_base"]) for mark in marks]
        assert starts == pytest.approx([chapter["start_s"] for chapter in found["chapters"]], abs=0.001)
        end = float(marks[-1]["end"] * marks[-1]["time_base"])
        assert end == pytest.approx(found["audio_seconds"], abs=0.001)
        assert container.metadata["title"] == container.metadata["album"] == "The Sea & the Storm"
        assert (container.metadata["artist"], container.metadata["genre"]) == ("Ann Author", "Audiobook")
        assert Path("sea.m4b").read_bytes()[4:12] == b"ftypM4B "
        (picture,) = container.streams.video
        assert picture.disposition == av.stream.Disposition.attached_pic
        assert (picture.width, picture.height) == (8, 8)
    samples, rate_hz = decoded("sea.m4b")
    assert len(samples) / rate_hz == pytest.approx(found["audio_seconds"], abs=0.1)
    # The audio is where the report says, between exact silence.
    for line in report():
        start, end = (int(line["start_s"] * rate_hz), int((line["start_s"] + line["seconds"]) * rate_hz))
        assert np.abs(samples[start:end]).mean() > 100 * np.abs(samples[end + 200 : end + 1500]).mean()


def test_one_gain_brings_the_book_to_the_levels_of_acx() -> None:
    found = facts("sea.epub", "-o", "sea.m4b")
    samples, _ = decoded("sea.m4b")
    rms_db = 10 * np.log10(np.square(samples).mean())
    peak_db = 20 * np.log10(np.abs(samples).max())
    assert found["levels_db"]["rms"] == pytest.approx(rms_db, abs=0.5)
    assert found["levels_db"]["peak"] <= -4.49
    assert peak_db <= -3
    assert found["gain_db"] != 0
    assert -23 <= found["levels_db"]["rms"] <= -18
    # The test signal has noise under its tones, and the check finds it.
    assert found["levels_db"]["noise_floor"] > -40
    assert any("noise floor" in problem for problem in found["acx_problems"])
    assert facts("sea.epub", "-o", "sea.m4b", "--no-level")["gain_db"] == 0


def test_peaks_are_limited_so_that_they_do_not_keep_a_book_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    say = TTS.say

    def loud(tts: TTS, text: str, **more: Any) -> Any:
        """Speak with a short peak, far above the mean of the book, and further if the text says so."""
        audio = say(tts, text, **more)
        samples = (0.02 if "so loud" in text else 0.5) * audio.samples
        samples[1000:1010] = 0.95
        return replace(audio, samples=samples)

    monkeypatch.setattr(TTS, "say", loud)
    found = facts("sea.epub", "-o", "sea.m4b")
    samples, _ = decoded("sea.m4b")
    assert 20 * np.log10(np.abs(samples).max()) <= -3
    assert found["levels_db"]["peak"] <= -4.49
    assert found["levels_db"]["rms"] == pytest.approx(10 * np.log10(np.square(samples).mean()), abs=0.5)
    Path("loud.txt").write_text("This one is so loud. " * 5)
    found = facts("loud.txt", "-o", "loud.m4b")
    assert found["levels_db"]["peak"] <= -4.49
    assert any("RMS" in problem for problem in found["acx_problems"])


@pytest.mark.parametrize(
    ("form", "rate_hz"), [("mp3", 44_100), ("opus", 48_000), ("flac", 24_000), ("m4a", 24_000)]
)
def test_chapters_can_be_files(form: str, rate_hz: int) -> None:
    more = ("--sample-rate", "44100", "--bitrate", "192k") if form == "mp3" else ()
    found = facts("sea.epub", "-o", "sea", "--chapters", form, "--srt", *more)
    names = [f"0{number} {title}" for number, title in ((1, "one"), (2, "two"), (3, "three"))]
    assert sorted(path.name for path in Path("sea").iterdir()) == sorted(
        f"{name}.{suffix}" for name in names for suffix in (form, "srt")
    )
    seconds = 0.0
    for number, name in enumerate(names, start=1):
        samples, rate = decoded(f"sea/{name}.{form}")
        assert rate == rate_hz
        seconds += len(samples) / rate
        with av.open(f"sea/{name}.{form}") as container:
            tags = {**container.metadata, **container.streams.audio[0].metadata}
            tags = {key.lower(): value for key, value in tags.items()}
        assert (tags["title"], tags["album"]) == (name[3:], "The Sea & the Storm")
        assert tags["track"].startswith(str(number))
    assert seconds == pytest.approx(found["audio_seconds"], abs=0.4)


def test_titles_of_chapters_become_safe_names_of_files() -> None:
    titles = ["../up", "a/b: c?", "漢" * 90, "..."]
    toc = [(title, f"c{number}.xhtml") for number, title in enumerate(titles)]
    documents = {f"c{number}": f"<p>This is chapter {number}.</p>" for number in range(len(titles))}
    write_epub(Path("odd.epub"), documents, toc=toc)
    make("odd.epub", "-o", "odd", "--chapters", "flac")
    assert sorted(path.name for path in Path("odd").iterdir()) == [
        "01 up.flac", "02 a b c.flac", f"03 {'漢' * 40}.flac", "04.flac",
    ]  # fmt: skip


def test_captions_have_a_cue_for_each_sentence(brief: TTS) -> None:
    long = "This sentence has so many words that it does not fit into two lines of forty-two characters, and is split."
    Path("sea.txt").write_text(f"The keeper slept until noon.\n\n{long}")
    make("sea.txt", "-o", "sea.m4b", "--srt")
    cues = [cue.split("\n") for cue in Path("sea.srt").read_text().strip().split("\n\n")]
    assert " ".join(cues[0][2:]) == "The keeper slept until noon."
    assert " ".join(" ".join(cue[2:]) for cue in cues[1:]) == long
    assert all(len(cue) <= 4 and max(map(len, cue[2:])) <= 42 for cue in cues)
    lines = report()

    def seconds(clock: str) -> float:
        hours, minutes, rest = clock.replace(",", ".").split(":")
        return 3600 * int(hours) + 60 * int(minutes) + float(rest)

    times = [tuple(map(seconds, cue[1].split(" --> "))) for cue in cues]
    assert times[0][0] == pytest.approx(lines[0]["start_s"], abs=0.002)
    assert times[1][0] == pytest.approx(lines[1]["start_s"], abs=0.002)
    assert times[-1][1] >= lines[1]["start_s"] + lines[1]["seconds"] - 0.002, "it stays until it can be read"
    assert all(end <= start for (_, end), (start, _) in pairwise(times))


def test_a_read_along_epub_joins_text_and_audio() -> None:
    make("sea.epub", "-o", "sea.m4b", "--read-along")
    with zipfile.ZipFile("sea.read-along.epub") as archive:
        assert archive.infolist()[0].filename == "mimetype"
        assert archive.infolist()[0].compress_type == zipfile.ZIP_STORED
        import xml.etree.ElementTree as ET

        package = ET.fromstring(archive.read("book.opf"))
        items = [item.attrib for item in package.iter("{http://www.idpf.org/2007/opf}item")]
        assert {item["href"] for item in items} <= set(archive.namelist())
        overlays = [item for item in items if item["media-type"] == "application/smil+xml"]
        assert len(overlays) == 3
        for overlay in overlays:
            pars = ET.fromstring(archive.read(overlay["href"])).iter("{http://www.w3.org/ns/SMIL}par")
            for par in pars:
                text, audio = par
                page, _, name = text.attrib["src"].partition("#")
                ids = re.findall(r'id="(s\d+)"', archive.read(page).decode())
                assert name in ids
                begin, end = (float(audio.attrib[edge][:-1]) for edge in ("clipBegin", "clipEnd"))
                assert 0 < begin < end
                archive.extract(audio.attrib["src"])
                samples, rate_hz = decoded(audio.attrib["src"])
                assert end <= len(samples) / rate_hz
    # Our own reader reads it as the same book.
    listed = json.loads(CliRunner().invoke(app, ["book", "sea.read-along.epub", "--list", "--json"]).stdout)
    assert [chapter["title"] for chapter in listed["chapters"]] == ["one", "two", "three"]


@pytest.mark.thorough
def test_a_book_with_258_chapters_keeps_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kind of chapter mark in MP4 ends at 255; the other has no limit."""
    for name in ("HEAD_MS", "TAIL_MS"):
        monkeypatch.setattr(timeline, name, 0)  # encoding takes most of the time
    monkeypatch.setattr(passages, "HEADING_PAUSE_MS", 0)
    write_epub(Path("many.epub"), {f"c{number}": f"<h1>Number {number}</h1>" for number in range(258)})
    make("many.epub", "-o", "many.m4b")
    with av.open("many.m4b") as container:
        assert [mark["metadata"]["title"] for mark in container.chapters()] == [f"c{n}" for n in range(258)]


def test_title_author_and_cover_can_be_given_and_the_cache_be_removed() -> None:
    Path("own.png").write_bytes(png(16))
    make(
        "sea.epub",
        "-o",
        "sea.m4b",
        "--title",
        "Mine",
        "--author",
        "Me",
        "--cover",
        "own.png",
        "--remove-cache",
    )
    with av.open("sea.m4b") as container:
        assert (container.metadata["title"], container.metadata["artist"]) == ("Mine", "Me")
        assert container.streams.video[0].width == 16
    assert not Path("sea.m4b.sentences").exists()


def test_a_cover_that_is_damaged_is_left_out() -> None:
    write_epub(Path("sea.epub"), DOCUMENTS, cover=png()[:20])
    make("sea.epub", "-o", "sea.m4b")
    with av.open("sea.m4b") as container:
        assert not container.streams.video
