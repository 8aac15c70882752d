"""/v1/audio/voices and the lookup of voices: uploads, limits, decompression bombs, blends."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import soundfile
from live_server import LiveServer, live_server
from plain_http import HTTP

from nightingale import TTS, Voice
from nightingale.errors import VoiceError, VoiceNotFound
from nightingale.server.service.voice_registry import VoiceRegistry
from nightingale.server.settings import ServerSettings
from nightingale.voices import library
from nightingale.voices.aliases import OPENAI_VOICES, resolve_alias
from nightingale.voices.blend import blend, parse_blend

if TYPE_CHECKING:
    from nightingale.engine.load import Model


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def limited(small: Callable[..., TTS]) -> Iterator[LiveServer]:
    """A server that stores two voices, from clips of at most five seconds and one megabyte."""
    with small() as tts:
        limits = {"max_clip_seconds": 5, "max_upload_bytes": 1 << 20, "max_voices": 2}
        with live_server(tts, **limits) as running:
            yield running


def clip(seconds: float = 2.0, rate_hz: int = 24_000, channels: int = 1, form: str = "WAV") -> bytes:
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    wave = 0.3 * np.sin(2 * np.pi * 150 * t) * (1 + np.sin(2 * np.pi * 3 * t))
    file = io.BytesIO()
    soundfile.write(file, np.stack([wave] * channels, axis=1), rate_hz, format=form)
    return file.getvalue()


def upload(server: LiveServer, name: str, data: bytes, field: str = "audio") -> httpx.Response:
    files = {field: ("clip.wav", data, "audio/wav")}
    return HTTP.post(f"{server.http}/v1/audio/voices", data={"name": name}, files=files, timeout=30)


def listed(server: LiveServer) -> dict[str, Any]:
    answer: dict[str, Any] = HTTP.get(f"{server.http}/v1/audio/voices").json()
    return answer


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize(
    ("form", "field"), [("WAV", "audio"), ("FLAC", "audio_sample"), ("OGG", "audio"), ("MP3", "audio")]
)
def test_uploaded_clip_becomes_a_voice_that_can_be_used_and_deleted(
    limited: LiveServer, home: Path, form: str, field: str
) -> None:
    answer = upload(limited, "anna", clip(form=form), field)
    assert answer.status_code == 201, answer.text
    assert answer.json()["id"] == "anna"
    voices = listed(limited)["voices"]
    assert [voice["id"] for voice in voices] == ["noise", "anna"], "the default is not first"
    body = {"input": "Hi.", "voice": "anna", "response_format": "pcm", "seed": 1}
    assert HTTP.post(f"{limited.http}/v1/audio/speech", json=body).status_code == 200
    gone = HTTP.delete(f"{limited.http}/v1/audio/voices/anna")
    assert gone.json() == {"id": "anna", "object": "voice.deleted", "deleted": True}
    assert error_of(HTTP.post(f"{limited.http}/v1/audio/speech", json=body), 400)["code"] == "voice_not_found"
    assert error_of(HTTP.delete(f"{limited.http}/v1/audio/voices/anna"), 404)["code"] == "voice_not_found"


def test_list_has_the_format_of_open_webui(limited: LiveServer, home: Path) -> None:
    answer = listed(limited)
    assert answer["object"] == "list"
    assert answer["data"] == answer["voices"]
    assert {"id", "name", "language", "builtin", "default"} <= set(answer["voices"][0])
    assert set(answer["aliases"]) == set(OPENAI_VOICES)


@pytest.mark.parametrize("name", ["Anna", "../anna", "a/b", "", "x" * 65, "an na", "a.b"])
def test_invalid_name_is_refused(limited: LiveServer, home: Path, name: str) -> None:
    error_of(upload(limited, name, clip()), 400)
    assert not list(home.rglob("*.safetensors"))


def test_taken_name_is_a_conflict(limited: LiveServer, home: Path) -> None:
    assert upload(limited, "anna", clip()).status_code == 201
    assert error_of(upload(limited, "anna", clip()), 409)["code"] == "voice_exists"
    assert error_of(upload(limited, "noise", clip()), 409)["code"] == "voice_exists"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("default", "requests that name none"),
        ("narrator", "alias of noise"),
        ("bert", "turbo"),
        ("noise", "own"),
        ("nova", "another name of noise"),
        ("af_noise", "another name of noise"),
    ],
)
def test_name_with_a_meaning_is_taken(small: Callable[..., TTS], home: Path, name: str, says: str) -> None:
    """A voice stored under it could not be requested, or would hide another model's."""
    library.add("bert", replace(make_voice("bert", 2), family="turbo"))
    with small() as tts, live_server(tts, voice_aliases={"Narrator": "noise"}) as server:
        error = error_of(upload(server, name, clip()), 409)
        assert (error["code"], error["param"]) == ("voice_exists", "name")
        assert says in error["message"]
        assert [voice["id"] for voice in listed(server)["voices"]] == ["noise"]


def test_number_of_voices_is_limited(limited: LiveServer, home: Path) -> None:
    for name in ("one", "two"):
        assert upload(limited, name, clip()).status_code == 201
    assert error_of(upload(limited, "three", clip()), 507)["code"] == "no_room"


def bomb() -> bytes:
    """Return twenty minutes of silence in a file of a few kilobytes."""
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", 8000, 1, format="FLAC", subtype="PCM_16") as out:
        for _ in range(20):
            out.write(np.zeros(8000 * 60, np.int16))
    return file.getvalue()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (bomb, "too long"),
        (lambda: clip(6.0), "too long"),
        (lambda: clip(0.2), "too short"),
        (lambda: clip(rate_hz=8000, channels=12), "channels"),
        (lambda: clip(rate_hz=1000), "sample rate"),
        (lambda: clip()[:44], "incomplete"),
        (lambda: clip(0.0), "no samples"),
        (lambda: b"", "empty"),
        (lambda: b"not sound at all" * 100, "'Format not recognised'"),
        (lambda: b"RIFF\xff\xff\xff\xffWAVEfmt " + b"\xff" * 200, "decoded"),
    ],
)
def test_unusable_clip_is_refused_with_a_reason(
    limited: LiveServer, home: Path, make: Callable[[], bytes], says: str
) -> None:
    error = error_of(upload(limited, "anna", make()), 400)
    assert says in error["message"]
    assert "object at 0x" not in error["message"], "the message shows a Python object"
    assert error["param"] == "audio"
    assert not list(home.rglob("*.safetensors"))


def test_large_upload_is_refused(limited: LiveServer, home: Path) -> None:
    assert error_of(upload(limited, "anna", b"x" * (2 << 20)), 413)["code"] == "request_too_large"


def test_form_without_a_clip_is_refused(limited: LiveServer, home: Path) -> None:
    answer = HTTP.post(f"{limited.http}/v1/audio/voices", data={"name": "anna"})
    assert error_of(answer, 400)["param"] == "audio"
    assert error_of(HTTP.post(f"{limited.http}/v1/audio/voices"), 400)["param"] == "name"


def test_builtin_voices_cannot_be_deleted(limited: LiveServer, home: Path) -> None:
    assert HTTP.delete(f"{limited.http}/v1/audio/voices/noise").status_code == 404
    assert "noise" in {voice["id"] for voice in listed(limited)["voices"]}


def test_uploads_can_be_disabled(small: Callable[..., TTS], home: Path) -> None:
    with small() as tts, live_server(tts, uploads=False) as server:
        assert error_of(upload(server, "anna", clip()), 403)["code"] == "uploads_off"
        assert error_of(HTTP.delete(f"{server.http}/v1/audio/voices/anna"), 403)["code"] == "uploads_off"


def make_voice(name: str, seed: int) -> Voice:
    rng = np.random.default_rng(seed)
    return Voice.checked(
        name=name,
        family="wren",
        speaker=rng.standard_normal(16),
        prompt_ids=rng.integers(6561, size=16),
        flow_prompt_ids=rng.integers(6561, size=8),
        flow_prompt_mel=rng.standard_normal((16, 80)),
        flow_speaker=rng.standard_normal(16),
    )


def test_blend_is_the_weighted_mean_with_the_prompts_of_the_heaviest_part() -> None:
    anna, bert = make_voice("anna", 1), make_voice("bert", 2)
    both = blend([(anna, 1.0), (bert, 3.0)])
    assert both.name == "anna+bert(3)"
    for part in ("speaker", "flow_speaker"):
        mixed, first, second = getattr(both, part), getattr(anna, part), getattr(bert, part)
        expected = 0.25 * first + 0.75 * second
        cosine = mixed @ expected / np.linalg.norm(mixed) / np.linalg.norm(expected)
        assert cosine == pytest.approx(1.0, abs=1e-5)
        norms = [float(np.linalg.norm(vector)) for vector in (mixed, first, second)]
        assert norms[0] == pytest.approx(0.25 * norms[1] + 0.75 * norms[2], rel=1e-5)
    assert np.array_equal(both.prompt_ids, bert.prompt_ids)
    assert np.array_equal(both.flow_prompt_mel, bert.flow_prompt_mel)


def test_blend_depends_on_ratios_only() -> None:
    anna, bert = make_voice("anna", 1), make_voice("bert", 2)
    assert blend([(anna, 2.0)]) == anna
    assert blend([(anna, 1.0), (anna, 2.0)]) == anna
    half, whole = blend([(anna, 1.0), (bert, 2.0)]), blend([(anna, 2.0), (bert, 4.0)])
    assert np.allclose(half.speaker, whole.speaker)


def test_voices_of_two_families_do_not_blend() -> None:
    small = make_voice("anna", 1)
    other = Voice.checked(
        name="bert",
        family="wren",
        speaker=np.ones(8),
        prompt_ids=small.prompt_ids,
        flow_prompt_ids=small.flow_prompt_ids,
        flow_prompt_mel=small.flow_prompt_mel,
        flow_speaker=np.ones(8),
    )
    with pytest.raises(VoiceError, match="blended"):
        blend([(small, 1.0), (other, 1.0)])
    with pytest.raises(VoiceError, match="not a blend"):
        blend([(small, 0.0)])


def test_names_of_openai_and_kokoro_are_aliases() -> None:
    voices = ["bella", "fenrir", "heart", "zoe"]
    assert resolve_alias("nova", voices) == "heart"
    assert resolve_alias("onyx", voices) == "fenrir"
    assert resolve_alias("sage", voices) in voices, "a name without its voice must still be an alias"
    assert resolve_alias("af_heart", voices) == "heart"
    assert resolve_alias("am_missing", voices) is None
    assert resolve_alias("missing", voices) is None
    assert resolve_alias("nova", []) is None


def test_blend_is_parsed_with_and_without_weights() -> None:
    assert parse_blend("a(2)+b") == [("a", 2.0), ("b", 1.0)]
    assert parse_blend(" A ( 0.5 ) + b_2 ") == [("a", 0.5), ("b_2", 1.0)]


def test_library_takes_precedence_over_aliases(home: Path, small: Callable[..., TTS]) -> None:
    nova = make_voice("nova", 3)
    library.add("nova", nova)
    registry = VoiceRegistry(ServerSettings(voice_aliases={"narrator": "nova"}))
    with small() as tts:
        assert registry.resolve("nova", tts) == nova
        assert registry.resolve({"id": "narrator"}, tts) == nova
        assert registry.resolve("alloy", tts) == tts.default_voice
        assert registry.resolve("nova+noise(3)", tts) is registry.resolve("nova+noise(3)", tts), "not cached"
        library.add("nova", make_voice("nova", 4), replace=True)
        assert registry.resolve("nova", tts) == make_voice("nova", 4), "a changed voice was not read again"


@pytest.mark.parametrize("alias", ["21m00Tcm4TlvDq8ikWAM", "21M00TCM4TLVDQ8IKWAM", "21m00tcm4tlvdq8ikwam"])
def test_alias_ignores_case(home: Path, small: Callable[..., TTS], alias: str) -> None:
    """ElevenLabs' ids have capital letters."""
    anna = make_voice("anna", 1)
    library.add("anna", anna)
    registry = VoiceRegistry(ServerSettings(voice_aliases={"21m00Tcm4TlvDq8ikWAM": "Anna"}))
    with small() as tts:
        assert registry.resolve(alias, tts) == anna
        assert registry.resolve(f"{alias}(2)+noise", tts) == registry.resolve("anna(2)+noise", tts)


@pytest.fixture
def folder_tts(noise_model: Model, small: Callable[..., TTS], tmp_path: Path) -> Iterator[TTS]:
    """Yield an engine whose model folder contains voices."""
    folder = tmp_path / "model" / "voices"
    folder.mkdir(parents=True)
    own = noise_model.default_voice
    assert own is not None
    for name in ("bella", "heart"):
        replace(own, name=name).save(folder / f"{name}.safetensors")
    with small() as tts:
        tts._voices._model = tts._model = replace(tts._model, voices=folder)
        yield tts


def test_voices_of_a_model_folder_are_listed_and_cannot_be_deleted(folder_tts: TTS, home: Path) -> None:
    assert folder_tts.voice("heart").name == "heart"
    with pytest.raises(VoiceNotFound, match="bella, heart"):
        folder_tts.voice("hart")
    with live_server(folder_tts) as server:
        voices = {voice["id"]: voice for voice in listed(server)["voices"]}
        assert {"bella", "heart"} <= set(voices)
        assert voices["heart"]["builtin"]
        body = {"input": "Hi.", "response_format": "pcm", "seed": 1}
        for name in ("heart", "heart+bella(2)", "af_bella"):
            answer = HTTP.post(f"{server.http}/v1/audio/speech", json={**body, "voice": name})
            assert answer.status_code == 200, answer.text
        assert error_of(upload(server, "heart", clip()), 409)["code"] == "voice_exists"
        assert error_of(HTTP.delete(f"{server.http}/v1/audio/voices/heart"), 400)["code"] == "invalid_voice"


def test_openai_names_mean_voices_of_the_model_folder(folder_tts: TTS, home: Path) -> None:
    registry = VoiceRegistry(ServerSettings())
    for name, expected in (("nova", "heart"), ("coral", "bella")):
        voice = registry.resolve(name, folder_tts)
        assert voice is not None
        assert voice.name == expected


def test_default_voice_can_be_set(home: Path, small: Callable[..., TTS]) -> None:
    anna = make_voice("anna", 1)
    library.add("anna", anna)
    registry = VoiceRegistry(ServerSettings(voice="anna"))
    with small() as tts:
        assert registry.resolve(None, tts) == anna
        assert registry.resolve("default", tts) == anna
        assert [voice.id for voice in registry.entries(tts) if voice.default] == ["anna"]
