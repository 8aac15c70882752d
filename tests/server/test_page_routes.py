"""The routes behind the page: limits, traits of voices, the text of files, and files of audio."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from live_server import LiveServer
from plain_http import HTTP
from sample_books import write_epub

from nightingale.server.web import page_routes
from nightingale.voices import library
from nightingale.voices.traits import BUILTIN_TRAITS

TONE = (8000 * np.sin(np.arange(24_000) / 20)).astype("<i2")


def test_models_tell_the_longest_text(server: LiveServer) -> None:
    card = HTTP.get(f"{server.http}/v1/models").json()["data"][0]
    assert card["max_input_chars"] == server.service.settings.max_text_chars
    assert HTTP.get(f"{server.http}/v1/models/{card['id']}").json() == card
    text = "x" * (card["max_input_chars"] + 1)
    assert HTTP.post(f"{server.http}/v1/audio/speech", json={"input": text}).status_code == 400


def test_voices_have_fields_for_gender_and_accent(server: LiveServer) -> None:
    for voice in HTTP.get(f"{server.http}/v1/audio/voices").json()["voices"]:
        assert voice["gender"] is voice["accent"] is None, "the voice of the noise model is neither"


def test_traits_of_the_built_in_voices_are_those_of_their_files() -> None:
    found = {entry.name: entry.provenance for entry in library.entries() if entry.builtin}
    assert found.keys() == BUILTIN_TRAITS.keys()
    for name, traits in BUILTIN_TRAITS.items():
        assert found[name].startswith(f"built in: {traits.gender}, {traits.accent} English"), name


def read(server: LiveServer, name: str, data: bytes) -> tuple[int, dict[str, object]]:
    answer = HTTP.post(f"{server.http}/v1/books/text", files={"file": (name, data)})
    return answer.status_code, answer.json()


def test_an_epub_is_read_by_chapters(server: LiveServer, tmp_path: Path) -> None:
    documents = {"one": "<h1>One</h1><p>It began.</p>", "two": "<h1>Two</h1><p>It went on.</p>"}
    path = write_epub(tmp_path / "sea.epub", documents)
    status, book = read(server, "C:\\books\\sea.epub", path.read_bytes())
    assert status == 200
    assert (book["title"], book["author"]) == ("The Sea & the Storm", "Ann Author")
    assert book["chapters"] == [
        {"title": "one", "text": "One\n\nIt began."},
        {"title": "two", "text": "Two\n\nIt went on."},
    ]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", "Café noir.".encode("cp1252")),
        ("a.md", "*Café* noir.".encode()),
        ("a.HTML", b"<p>Caf&eacute; noir."),
    ],
)
def test_other_files_are_read(server: LiveServer, name: str, data: bytes) -> None:
    status, book = read(server, name, data)
    assert (status, book["chapters"]) == (200, [{"title": "a", "text": "Café noir."}])


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("a.pdf", b"%PDF", "not a kind of book"),
        ("a.epub", b"not a zip", "cannot be read"),
        ("a.txt", b" \n", "no text"),
        ("a.txt", b"word " * (page_routes.MAX_TEXT_BYTES // 5 + 1), "too long"),
    ],
)
def test_files_that_cannot_be_read_are_refused(server: LiveServer, name: str, data: bytes, told: str) -> None:
    status, answer = read(server, f"/folder/{name}", data)
    assert status == 400
    assert told in answer["error"]["message"]  # type: ignore[index]
    assert "/folder/" not in str(answer)


def test_an_epub_that_unpacks_to_more_than_the_limit_is_refused(server: LiveServer, tmp_path: Path) -> None:
    page = "<p>" + "word " * (1 << 20)
    path = write_epub(tmp_path / "bomb.epub", {f"d{i}": page for i in range(6)})
    assert path.stat().st_size < 1 << 20
    status, answer = read(server, "bomb.epub", path.read_bytes())
    assert status == 400
    assert "bytes of text" in str(answer)


def test_audio_is_encoded_in_every_format_of_the_server(server: LiveServer) -> None:
    names = HTTP.get(f"{server.http}/v1/audio/encode").json()
    assert {"wav", "mp3", "opus", "flac"} <= set(names)
    for name in names:
        answer = HTTP.post(f"{server.http}/v1/audio/encode?response_format={name}", content=TONE.tobytes())
        assert answer.status_code == 200, answer.text
        if name != "m4a":  # which libsndfile does not read
            samples, rate_hz = soundfile.read(io.BytesIO(answer.content), dtype="int16")
            assert len(samples) / rate_hz == pytest.approx(1.0, abs=0.1)
        if name in ("wav", "flac"):
            assert np.abs(samples.astype(int) - TONE).max() <= 1


def test_a_full_disk_is_told_without_a_path(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    answer = HTTP.post(f"{server.http}/v1/audio/encode?response_format=mp3", content=TONE.tobytes())
    assert answer.status_code == 507
    assert str(tmp_path) not in answer.text


@pytest.mark.parametrize(
    ("query", "data"), [("mp3", b""), ("mp3", b"x"), ("avi", b"xx"), ("", b"xx"), ("/../a.mp3", b"xx")]
)
def test_what_cannot_be_encoded_is_refused(server: LiveServer, query: str, data: bytes) -> None:
    answer = HTTP.post(f"{server.http}/v1/audio/encode?response_format={query}", content=data)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
