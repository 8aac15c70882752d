"""Tenants: no protocol shows, uses or deletes the voices of another tenant, and admins share theirs."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_server import LiveServer, free_port
from plain_http import HTTP

pytest.importorskip("fastapi")
from tenant_clients import CLIENTS, KEYS, PCM, clip, header, listed, speak, tenant_server, upload

from nightingale import TTS, ConfigError, Voice
from nightingale.voices import library
from nightingale.voices.voice import _ARRAYS


@pytest.fixture(scope="module")
def tenants(small: Callable[..., TTS], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("keys")
    with small() as tts, tenant_server(tts, folder / "keys.toml", max_voices=2) as running:
        yield running


@pytest.fixture
def voices(noise_model: object) -> None:
    """Store a voice of ann, one of bob, one that both have under the same name, and one of all."""
    own: Voice = noise_model.default_voice  # type: ignore[attr-defined]
    for name, owner in (("anns", "ann"), ("bobs", "bob"), ("same", "ann"), ("same", "bob"), ("all", None)):
        arrays = {array: getattr(own, array) for array in _ARRAYS}
        arrays["speaker"] = own.speaker * (-1 if owner == "bob" else 1)
        library.add(name, Voice.checked(name=name, family=own.family, **arrays), tenant=owner)


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.usefixtures("voices")
def test_a_tenant_speaks_with_its_own_and_shared_voices_only(
    tenants: LiveServer, client: Callable[[LiveServer, str, str], str]
) -> None:
    for voice in ("anns", "same", "all"):
        assert not client(tenants, "ann", voice)
    error = client(tenants, "ann", "bobs")
    assert "no such voice" in error
    missing = client(tenants, "ann", "missing")
    assert {"anns", "all", "same", "noise"} <= set(re.findall(r"\w+", missing))
    assert "bobs" not in missing, "the error lists voices of another tenant"
    assert "no such voice" in client(tenants, "boss", "bobs"), "an admin has no voices of others, either"


@pytest.mark.usefixtures("voices")
def test_tenants_may_use_the_same_name_for_different_voices(tenants: LiveServer) -> None:
    resolve, tts = tenants.service._voices.registry.resolve, tenants.service._tts
    assert tts is not None
    mine, other = (resolve("same", tts, tenant=name) for name in ("ann", "bob"))
    assert mine != other
    assert speak(tenants, "ann", voice="same").status_code == 200


@pytest.mark.parametrize("path", ["/v1/audio/voices", "/v1/voices"])
@pytest.mark.usefixtures("voices")
def test_lists_have_own_and_shared_voices_only(tenants: LiveServer, path: str) -> None:
    text = HTTP.get(tenants.http + path, headers=header("ann")).text
    assert all(f'"{name}"' in text for name in ("anns", "same", "all", "noise"))
    assert "bobs" not in text
    assert "anns" not in HTTP.get(tenants.http + path, headers=header("boss")).text


def delete(server: LiveServer, name: str, path: str) -> tuple[int, str]:
    answer = HTTP.delete(f"{server.http}/v1/{path}", headers=header(name))
    return answer.status_code, answer.json().get("error", {}).get("code", "")


@pytest.mark.usefixtures("voices")
def test_a_tenant_deletes_its_own_voices_only(tenants: LiveServer) -> None:
    def deletable(name: str) -> set[str]:
        found = HTTP.get(f"{tenants.http}/v1/audio/voices", headers=header(name)).json()["voices"]
        return {voice["id"] for voice in found if voice["deletable"]}

    assert deletable("ann") == {"anns", "same"}
    assert deletable("boss") == {"all"}
    assert delete(tenants, "ann", "audio/voices/bobs") == (404, "voice_not_found")
    assert delete(tenants, "ann", "audio/voices/all") == (403, "admin_required")
    assert delete(tenants, "ann", "audio/voices/same")[0] == 200
    assert delete(tenants, "boss", "audio/voices/bobs") == (404, "voice_not_found")
    assert listed(tenants, "ann") == {"anns", "all"}
    assert listed(tenants, "bob") == {"bobs", "same", "all"}
    assert delete(tenants, "boss", "audio/voices/all")[0] == 200
    assert listed(tenants, "bob") == {"bobs", "same"}


def test_uploads_are_private_and_an_admin_shares(tenants: LiveServer) -> None:
    assert upload(tenants, "ann", "anna", clip()).json()["shared"] is False
    assert upload(tenants, "bob", "anna", clip()).status_code == 201, "a private name is taken for others"
    assert upload(tenants, "ann", "anna", clip()).status_code == 409
    refused = upload(tenants, "ann", "mine", clip(), shared="true")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_required")
    assert upload(tenants, "boss", "common", clip(), shared="true").json()["shared"] is True
    taken = upload(tenants, "ann", "common", clip())
    assert taken.status_code == 409, "an own voice would hide one that all have"
    assert upload(tenants, "boss", "draft", clip()).status_code == 201
    assert listed(tenants, "ann") == {"anna", "common"}

    def share(name: str, voice: str, query: str = "") -> int:
        url = f"{tenants.http}/v1/audio/voices/{voice}/share{query}"
        return HTTP.post(url, headers=header(name)).status_code

    assert share("ann", "anna") == 403
    assert share("boss", "anna") == 404, "not the admin's own"
    assert share("boss", "draft") == 200
    assert share("boss", "anna", "?tenant=nobody") == 404
    assert share("boss", "anna", "?tenant=bob") == 200
    assert share("boss", "common", "?tenant=bob") == 404, "it is not a voice of the tenant"
    assert listed(tenants, "bob") == {"anna", "common", "draft"}
    assert not list(Path(library.voices_folder("bob")).glob("*.safetensors")), (
        "a shared voice stays private, too"
    )


def test_number_of_voices_is_limited_for_each_tenant(tenants: LiveServer) -> None:
    for name in ("ann", "bob"):
        for voice in ("one", "two"):
            assert upload(tenants, name, voice, clip()).status_code == 201
    assert upload(tenants, "ann", "three", clip()).json()["error"]["code"] == "no_room"


@pytest.mark.usefixtures("voices")
def test_an_admin_lists_and_deletes_voices_of_any_tenant(tenants: LiveServer) -> None:
    url = f"{tenants.http}/v1/tenants"
    found = HTTP.get(f"{url}/bob/voices", headers=header("boss")).json()["voices"]
    assert [voice["id"] for voice in found] == ["bobs", "same"]
    assert HTTP.get(f"{url}/bob/voices", headers=header("ann")).status_code == 403
    assert HTTP.get(f"{url}/ann/voices", headers=header("ann")).status_code == 200
    for unknown in ("cy", "default", "public", "bob%2F.."):
        assert HTTP.get(f"{url}/{unknown}/voices", headers=header("boss")).status_code == 404
        assert HTTP.get(f"{url}/{unknown}/voices", headers=header("ann")).status_code in (403, 404)
    assert delete(tenants, "ann", "tenants/bob/voices/bobs") == (403, "admin_required")
    assert delete(tenants, "boss", "tenants/bob/voices/anns") == (404, "voice_not_found")
    assert delete(tenants, "boss", "tenants/bob/voices/bobs")[0] == 200
    assert listed(tenants, "bob") == {"same", "all"}


def test_only_an_admin_reads_metrics(tenants: LiveServer) -> None:
    answer = HTTP.get(f"{tenants.http}/metrics", headers=header("ann"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_required")
    assert HTTP.get(f"{tenants.http}/metrics", headers=header("boss")).status_code == 200


def tenants_of(records: list[logging.LogRecord]) -> dict[str, str | None]:
    """Return the tenant of each line about a request, by its id, and of the turns of sockets."""
    lines = [record for record in records if record.getMessage() in ("request", "turn")]
    ids = {getattr(line, "request_id", "turn"): getattr(line, "tenant", None) for line in lines}
    return {name: tenant for name, tenant in ids.items() if not name.startswith("req_")}


def test_logs_have_the_tenant_and_never_a_key(tenants: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    keys = {"spoken": KEYS["ann"], "missing": KEYS["ann"], "refused": "a-wrong-key"}
    with caplog.at_level(logging.DEBUG, "nightingale"):
        for voice, key in keys.items():
            body = {**PCM, "voice": "noise" if voice == "spoken" else voice}
            headers = {"xi-api-key": key, "x-request-id": voice}
            HTTP.post(f"{tenants.http}/v1/audio/speech", json=body, headers=headers)
        CLIENTS["our socket"](tenants, "bob", "noise")
        deadline = time.monotonic() + 10
        while (named := tenants_of(caplog.records)).keys() != {*keys, "turn"}:
            assert time.monotonic() < deadline, f"not all lines were logged: {named}"
            time.sleep(0.01)
    assert named == {"spoken": "ann", "missing": "ann", "refused": None, "turn": "bob"}
    everything = " ".join(str(record.__dict__) for record in caplog.records)
    for secret in (*KEYS.values(), "a-wrong-key", "sha256:"):
        assert secret not in everything


@contextmanager
def wyoming(tts: TTS, path: Path, **settings: str) -> Iterator[int]:
    pytest.importorskip("wyoming")
    port = free_port()
    with tenant_server(tts, path, wyoming=f"tcp://127.0.0.1:{port}", **settings):
        yield port


@pytest.mark.parametrize(
    ("tenant", "visible"), [(None, {"all", "noise"}), ("ann", {"all", "noise", "anns", "same"})]
)
@pytest.mark.usefixtures("voices")
def test_wyoming_has_shared_voices_or_those_of_the_tenant_that_is_set(
    brief: TTS, tmp_path: Path, tenant: str | None, visible: set[str]
) -> None:
    settings = {} if tenant is None else {"wyoming_tenant": tenant}
    with wyoming(brief, tmp_path / "keys.toml", **settings) as port:
        from wyoming.client import AsyncTcpClient
        from wyoming.info import Describe, Info
        from wyoming.tts import Synthesize, SynthesizeVoice

        async def run() -> tuple[set[str], dict[str, str]]:
            async with AsyncTcpClient("127.0.0.1", port) as client:
                await client.write_event(Describe().event())
                event = await client.read_event()
                assert event is not None
                names = {voice.name for voice in Info.from_event(event).tts[0].voices}
            ends = {}
            for voice in ("all", "anns", "bobs"):
                async with AsyncTcpClient("127.0.0.1", port) as client:
                    await client.write_event(
                        Synthesize(text="Hi.", voice=SynthesizeVoice(name=voice)).event()
                    )
                    while (event := await client.read_event()) is not None:
                        if event.type in ("audio-stop", "error"):
                            ends[voice] = event.type
                            assert "bobs" not in str(event.data).replace("'bobs'", "")
                            break
            return names, ends

        names, ends = asyncio.run(asyncio.wait_for(run(), 30))
    assert names == visible
    assert ends == {voice: "audio-stop" if voice in visible else "error" for voice in ("all", "anns", "bobs")}


def test_wyoming_tenant_must_exist(brief: TTS, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="no such tenant"),
        wyoming(brief, tmp_path / "keys.toml", wyoming_tenant="cy"),
    ):
        pass


def test_a_single_key_is_an_admin_whose_voices_all_share(small: Callable[..., TTS], tmp_path: Path) -> None:
    """A server with api_key works as before; its voices are shared once there is a key file, too."""
    with small() as tts, tenant_server(tts, tmp_path / "keys.toml", api_key="the old key") as server:
        old = {"authorization": "Bearer the old key"}
        files = {"audio": ("clip.wav", clip(), "audio/wav")}
        answer = HTTP.post(f"{server.http}/v1/audio/voices", data={"name": "old"}, files=files, headers=old)
        assert answer.json()["shared"] is True
        assert listed(server, "ann") == {"old"}
        assert HTTP.get(f"{server.http}/metrics", headers=old).status_code == 200
        assert HTTP.delete(f"{server.http}/v1/audio/voices/old", headers=old).status_code == 200
        assert HTTP.get(f"{server.http}/v1/models").status_code == 401


def test_an_uploaded_clip_is_not_stored(tenants: LiveServer) -> None:
    """Neither its file nor its samples: a voice has embeddings and prompts only."""
    home = Path(os.environ["NIGHTINGALE_HOME"])
    contents = clip()
    assert upload(tenants, "ann", "anna", contents).status_code == 201
    stored = [path for path in home.rglob("*") if path.is_file() and "usage" not in path.name]
    assert [path.relative_to(home).as_posix() for path in stored] == ["voices/tenants/ann/anna.safetensors"]
    assert contents[1000:2000] not in stored[0].read_bytes()


@pytest.mark.usefixtures("voices")
def test_a_damaged_voice_file_shows_no_path(tenants: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    path = library.find("anns", tenant="ann")
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    answer = speak(tenants, "ann", voice="anns")
    assert answer.json()["error"]["code"] == "invalid_voice"
    assert str(path.parent) not in answer.text
    assert str(path.parent) in str([vars(record) for record in caplog.records]), (
        "the log does not say which file"
    )
