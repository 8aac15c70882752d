"""Fields of a speech request that concern its text, over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import LiveServer, live_server
from plain_http import HTTP

from nightingale import TTS


@pytest.fixture(scope="module")
def reading(english: TTS) -> Iterator[LiveServer]:
    """Return a server that normalizes English, with an engine of its own limit."""
    with TTS.over(english._model, max_chars=10_000) as tts, live_server(tts) as running:
        yield running


def post(server: LiveServer, **body: Any) -> httpx.Response:
    return HTTP.post(f"{server.http}/v1/audio/speech", json={"response_format": "pcm", **body}, timeout=30)


def test_a_header_lists_what_is_not_spoken(reading: LiveServer) -> None:
    answer = post(reading, input="Hi 你好 🙂.")
    assert answer.status_code == 200
    warnings = json.loads(answer.headers["x-warnings"])
    assert warnings == [
        "wren speaks English and leaves out Chinese characters; the model multilingual speaks Chinese: 你好 "
        "(character 4)",
        "symbols without a spoken form are left out: 🙂 (character 7)",
    ]
    assert "x-warnings" not in post(reading, input="Hi.").headers


def test_a_strict_request_is_refused(reading: LiveServer) -> None:
    answer = post(reading, input="Hi 🙂.", strict=True)
    assert answer.status_code == 400
    assert "would not be spoken" in answer.json()["error"]["message"]
    assert post(reading, input="Hi.", strict=True).status_code == 200


def test_a_text_in_another_script_is_refused_with_the_model_that_speaks_it(reading: LiveServer) -> None:
    answer = post(reading, input="你好,世界")
    assert answer.status_code == 400
    assert "-m multilingual -l zh" in answer.json()["error"]["message"]


def segments(server: LiveServer, **body: Any) -> list[str]:
    answer = HTTP.post(f"{server.http}/v1/audio/speech/captions", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return [segment["text"] for segment in answer.json()["segments"]]


def test_a_request_has_a_lexicon_over_that_of_the_server(english: TTS, tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text('[words]\nnginx = "engine X"\nkubectl = "cube control"\n', encoding="utf-8")
    with live_server(english, lexicon=path) as running:
        assert segments(running, input="Run nginx, kubectl.") == ["Run engine X, cube control."]
        own = {"kubectl": "koob C T L"}
        assert segments(running, input="Run nginx, kubectl.", lexicon=own) == ["Run engine X, koob C T L."]
        # A client cannot name a file of the server.
        assert post(running, input="Hi.", lexicon=str(path)).status_code == 400


@pytest.mark.parametrize(
    ("text", "lexicon", "message"),
    [
        ("-" * 9950, {f"{'-' * 950}{number}": "dash" for number in range(1000)}, "a word of the lexicon"),
        ("a " * 2000, {"a": "b " * 100_000}, "a respelling of the lexicon"),
        ("a " * 2000, {"a": "b " * 400}, "with the respellings of the lexicon"),
    ],
)
def test_a_lexicon_that_costs_too_much_is_refused(
    reading: LiveServer, text: str, lexicon: dict[str, str], message: str
) -> None:
    answer = post(reading, input=text, lexicon=lexicon)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert post(reading, input="Run nginx.", lexicon={"nginx": "engine X"}).status_code == 200
