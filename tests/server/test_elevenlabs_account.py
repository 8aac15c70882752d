"""ElevenLabs' routes for models, voices and the user, and all of its output formats over HTTP."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from live_server import LiveServer, live_server
from plain_http import HTTP
from tenant_clients import KEYS, speak, tenant, tenant_server, upload

from nightingale import TTS
from nightingale.server.elevenlabs.elevenlabs_routes import OUTPUT_FORMATS

KEY = {"xi-api-key": "none"}
BODY = {"input": "Hello.", "seed": 1}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def server(small: Callable[..., TTS]) -> Iterator[LiveServer]:
    with small() as tts, live_server(tts, max_voices=4, max_clip_seconds=5) as running:
        yield running


def clip(seconds: float = 2.0, rate_hz: int = 24_000) -> bytes:
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    file = io.BytesIO()
    wave = 0.3 * np.sin(2 * np.pi * 150 * t) * (1 + np.sin(2 * np.pi * 3 * t))
    soundfile.write(file, wave, rate_hz, format="WAV")
    return file.getvalue()


def add(server: LiveServer, name: str, *clips: bytes) -> Any:
    files = [("files", (f"{number}.wav", data, "audio/wav")) for number, data in enumerate(clips)]
    # What the client sends besides: labels that are left out are "null".
    return HTTP.post(
        f"{server.http}/v1/voices/add",
        data={"name": name, "labels": "null"},
        files=files,
        headers=KEY,
        timeout=30,
    )


def get(server: LiveServer, path: str, **query: Any) -> dict[str, Any]:
    answer = HTTP.get(f"{server.http}{path}", params=query, headers=KEY)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_models_are_a_list_for_elevenlabs_and_an_object_for_openai(server: LiveServer) -> None:
    (model,) = get(server, "/v1/models")
    assert (model["model_id"], model["can_do_text_to_speech"]) == ("noise", True)  # type: ignore[index]
    for headers in ({}, {"authorization": "Bearer none"}, {**KEY, "authorization": "Bearer none"}):
        answer = HTTP.get(f"{server.http}/v1/models", headers=headers).json()
        assert (answer["object"], answer["data"][0]["id"]) == ("list", "noise")


def test_a_voice_is_added_described_used_and_deleted(server: LiveServer, home: Path) -> None:
    voice_id = add(server, "Anna's Voice!", clip()).json()["voice_id"]
    assert voice_id == "anna-s-voice"
    again = add(server, "Anna's Voice!", clip()).json()["voice_id"]
    assert again.startswith(f"{voice_id}-"), "names need not be unique"
    described = get(server, f"/v1/voices/{voice_id}")
    assert (described["voice_id"], described["category"], described["is_owner"]) == (voice_id, "cloned", True)
    assert get(server, "/v1/voices/nova")["voice_id"] == "noise", "an alias has the description of its voice"
    spoken = HTTP.post(f"{server.http}/v1/text-to-speech/{voice_id}", json={"text": "Hello."}, headers=KEY)
    assert spoken.status_code == 200
    assert get(server, "/v1/user/subscription")["voice_slots_used"] == 2
    assert HTTP.get(f"{server.http}/v1/voices/noise+{voice_id}", headers=KEY).status_code == 404
    for name in (voice_id, again):
        assert HTTP.delete(f"{server.http}/v1/voices/{name}", headers=KEY).json() == {"status": "ok"}
    for missing in (voice_id, "%00"):
        answer = HTTP.get(f"{server.http}/v1/voices/{missing}", headers=KEY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "voice_not_found")
    assert HTTP.delete(f"{server.http}/v1/voices/{voice_id}", headers=KEY).status_code == 404


def test_several_clips_become_one_voice(server: LiveServer, home: Path) -> None:
    answer = add(server, "both", clip(1.0), clip(1.0, rate_hz=16_000))
    assert answer.status_code == 200, answer.text
    assert HTTP.delete(f"{server.http}/v1/voices/both", headers=KEY).status_code == 200
    long = add(server, "both", clip(3.0), clip(3.0))
    assert (long.status_code, long.json()["error"]["code"]) == (400, "invalid_audio"), "together six seconds"
    assert add(server, "both").status_code == 400
    assert add(server, "both", *[b"x"] * 26).json()["error"]["param"] == "files"


def test_voices_are_searched_page_by_page(server: LiveServer, home: Path) -> None:
    for name in ("anna", "berta", "clara"):
        assert add(server, name, clip()).status_code == 200

    def names(**query: Any) -> list[str]:
        return [voice["voice_id"] for voice in get(server, "/v2/voices", **query)["voices"]]

    assert names() == ["noise", "anna", "berta", "clara"]
    assert names(search="BERT") == ["berta"]
    assert names(category="premade") == names(voice_type="default") == ["noise"]
    assert names(voice_type="personal", sort="name", sort_direction="desc") == ["clara", "berta", "anna"]
    assert names(voice_type="community") == []
    assert names(voice_ids=["anna", "noise"]) == ["noise", "anna"]
    first = get(server, "/v2/voices", page_size=3)
    assert (len(first["voices"]), first["has_more"], first["total_count"]) == (3, True, 4)
    last = get(server, "/v2/voices", page_size=3, next_page_token=first["next_page_token"])
    assert [voice["voice_id"] for voice in last["voices"]] == ["clara"]
    assert (last["has_more"], last["next_page_token"]) == (False, None)
    wrong = HTTP.get(f"{server.http}/v2/voices?next_page_token=x", headers=KEY)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "next_page_token")


def test_the_subscription_states_the_limits_of_the_server(server: LiveServer, home: Path) -> None:
    before = get(server, "/v1/user")["subscription"]
    assert (before["voice_limit"], before["can_use_instant_voice_cloning"]) == (4, True)
    HTTP.post(f"{server.http}/v1/text-to-speech/noise", json={"text": "Hello."}, headers=KEY)
    after = get(server, "/v1/user/subscription")
    assert after["character_count"] == before["character_count"] + len("Hello.")
    assert after["character_limit"] > 10**9


@pytest.mark.parametrize("form", OUTPUT_FORMATS)
def test_every_output_format_is_available_over_http(server: LiveServer, form: str) -> None:
    codec, rate_hz = form.split("_")[:2]
    address = f"{server.http}/v1/text-to-speech/noise?output_format={form}"
    answer = HTTP.post(address, json={"text": BODY["input"], "seed": 1}, headers=KEY)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-sample-rate"] == rate_hz
    sizes = {"pcm": 2, "ulaw": 1, "alaw": 1}
    plain = HTTP.post(f"{server.http}/v1/audio/speech", json={**BODY, "response_format": "pcm"})
    seconds = len(plain.content) / 48_000
    if codec in sizes:
        assert len(answer.content) / sizes[codec] / int(rate_hz) == pytest.approx(seconds, abs=0.01)
    if codec == "wav":
        assert (answer.content[:4], answer.headers["content-type"]) == (b"RIFF", "audio/wav")


def test_a_tenant_sees_its_own_voices_and_limits(small: Callable[..., TTS], home: Path) -> None:
    limited = tenant("ann", characters_per_day=100)
    with small() as tts, tenant_server(tts, home / "keys.toml", limited) as server:

        def ask(name: str, path: str) -> Any:
            return HTTP.get(f"{server.http}{path}", headers={"xi-api-key": KEYS[name]})

        assert upload(server, "ann", "anns", clip()).status_code == 201
        assert speak(server, "ann").status_code == 200
        for path in ("/v1/voices", "/v2/voices"):
            found = {name: ask(name, path).json()["voices"] for name in ("ann", "bob")}
            assert {voice["voice_id"]: voice["is_owner"] for voice in found["ann"]} == {
                "noise": False,
                "anns": True,
            }
            assert [voice["voice_id"] for voice in found["bob"]] == ["noise"]
        assert ask("bob", "/v1/voices/anns").status_code == 404
        gone = HTTP.delete(f"{server.http}/v1/voices/anns", headers={"xi-api-key": KEYS["bob"]})
        assert gone.status_code == 404
        user = ask("ann", "/v1/user").json()
        shown = {name: user["subscription"][name] for name in ("character_count", "character_limit")}
        assert (user["user_id"], shown) == ("ann", {"character_count": 3, "character_limit": 100})
        assert user["subscription"]["voice_slots_used"] == 1
        assert ask("bob", "/v1/user/subscription").json()["character_count"] == 0
        refused = HTTP.get(f"{server.http}/v1/user", headers={"xi-api-key": "wrong"})
        assert refused.json()["detail"]["status"] == "invalid_api_key"
