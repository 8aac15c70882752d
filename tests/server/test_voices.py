"""/v1/audio/voices, and who is meant by a name: uploads, limits, bombs, blends."""

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
import torch
from live_server import LiveServer, live_server
from plain_http import HTTP

from nightingale import TTS, Voice
from nightingale.errors import VoiceError, VoiceNotFound
from nightingale.server.aliases import OPENAI_VOICES, read_blend, stand_in
from nightingale.server.roster import Roster
from nightingale.server.settings import Settings
from nightingale.voices import library
from nightingale.voices.blend import blend

if TYPE_CHECKING:
    from nightingale.engine.model import Model


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def limited(small: Callable[..., TTS]) -> Iterator[LiveServer]:
    """A server that keeps two voices of at most five seconds and a megabyte."""
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
def test_a_clip_becomes_a_voice_that_speaks_and_can_be_forgotten(
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


def test_the_list_has_the_shape_that_open_webui_reads(limited: LiveServer, home: Path) -> None:
    answer = listed(limited)
    assert answer["object"] == "list"
    assert answer["data"] == answer["voices"]
    assert {"id", "name", "language", "builtin", "default"} <= set(answer["voices"][0])
    assert set(answer["aliases"]) == set(OPENAI_VOICES)


@pytest.mark.parametrize("name", ["Anna", "../anna", "a/b", "", "x" * 65, "an na", "a.b"])
def test_a_name_that_could_be_a_path_is_refused(limited: LiveServer, home: Path, name: str) -> None:
    error_of(upload(limited, name, clip()), 400)
    assert not list(home.rglob("*.safetensors"))


def test_a_taken_name_is_a_conflict(limited: LiveServer, home: Path) -> None:
    assert upload(limited, "anna", clip()).status_code == 201
    assert error_of(upload(limited, "anna", clip()), 409)["code"] == "voice_exists"
    assert error_of(upload(limited, "noise", clip()), 409)["code"] == "voice_exists"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("default", "when none is named"),
        ("narrator", "alias of noise"),
        ("bert", "turbo"),
        ("noise", "own"),
        ("nova", "another name of noise"),
        ("af_noise", "another name of noise"),
    ],
)
def test_a_name_that_means_somebody_already_is_taken(
    small: Callable[..., TTS], home: Path, name: str, says: str
) -> None:
    """Kept under it, the new voice could never be asked for, or would hide another model's."""
    library.add("bert", replace(someone("bert", 2), family="turbo"))
    with small() as tts, live_server(tts, voice_aliases={"Narrator": "noise"}) as server:
        error = error_of(upload(server, name, clip()), 409)
        assert (error["code"], error["param"]) == ("voice_exists", "name")
        assert says in error["message"]
        assert [voice["id"] for voice in listed(server)["voices"]] == ["noise"]


def test_only_so_many_are_kept(limited: LiveServer, home: Path) -> None:
    for name in ("one", "two"):
        assert upload(limited, name, clip()).status_code == 201
    assert error_of(upload(limited, "three", clip()), 507)["code"] == "no_room"


def bomb() -> bytes:
    """Twenty minutes of silence in a file of a few kilobytes."""
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
        (lambda: clip()[:44], "no sound"),
        (lambda: b"", "empty"),
        (lambda: b"not sound at all" * 100, "'Format not recognised'"),
        (lambda: b"RIFF\xff\xff\xff\xffWAVEfmt " + b"\xff" * 200, "decoded"),
    ],
)
def test_a_clip_that_cannot_be_a_voice_is_refused_in_words(
    limited: LiveServer, home: Path, make: Callable[[], bytes], says: str
) -> None:
    error = error_of(upload(limited, "anna", make()), 400)
    assert says in error["message"]
    assert "object at 0x" not in error["message"], "that is Python's business"
    assert error["param"] == "audio"
    assert not list(home.rglob("*.safetensors"))


def test_an_upload_that_is_too_large_is_not_read(limited: LiveServer, home: Path) -> None:
    assert error_of(upload(limited, "anna", b"x" * (2 << 20)), 413)["code"] == "request_too_large"


def test_a_form_without_a_clip_is_refused(limited: LiveServer, home: Path) -> None:
    answer = HTTP.post(f"{limited.http}/v1/audio/voices", data={"name": "anna"})
    assert error_of(answer, 400)["param"] == "audio"
    assert error_of(HTTP.post(f"{limited.http}/v1/audio/voices"), 400)["param"] == "name"


def test_built_in_voices_stay(limited: LiveServer, home: Path) -> None:
    assert HTTP.delete(f"{limited.http}/v1/audio/voices/noise").status_code == 404
    assert "noise" in {voice["id"] for voice in listed(limited)["voices"]}


def test_uploads_can_be_switched_off(small: Callable[..., TTS], home: Path) -> None:
    with small() as tts, live_server(tts, uploads=False) as server:
        assert error_of(upload(server, "anna", clip()), 403)["code"] == "uploads_off"
        assert error_of(HTTP.delete(f"{server.http}/v1/audio/voices/anna"), 403)["code"] == "uploads_off"


def someone(name: str, seed: int) -> Voice:
    rng = torch.Generator().manual_seed(seed)
    return Voice.checked(
        name=name,
        family="wren",
        speaker=torch.randn(16, generator=rng),
        prompt_ids=torch.randint(6561, (16,), generator=rng),
        flow_prompt_ids=torch.randint(6561, (8,), generator=rng),
        flow_prompt_mel=torch.randn(16, 80, generator=rng),
        flow_speaker=torch.randn(16, generator=rng),
    )


def test_a_blend_lies_between_its_parts_and_borrows_the_prompts_of_the_heaviest() -> None:
    anna, bert = someone("anna", 1), someone("bert", 2)
    both = blend([(anna, 1.0), (bert, 3.0)])
    assert both.name == "anna+bert(3)"
    for part in ("speaker", "flow_speaker"):
        mixed, first, second = getattr(both, part), getattr(anna, part), getattr(bert, part)
        expected = 0.25 * first + 0.75 * second
        assert torch.cosine_similarity(mixed, expected, 0) == pytest.approx(1.0, abs=1e-5)
        assert float(mixed.norm()) == pytest.approx(
            float(0.25 * first.norm() + 0.75 * second.norm()), rel=1e-5
        )
    assert torch.equal(both.prompt_ids, bert.prompt_ids)
    assert torch.equal(both.flow_prompt_mel, bert.flow_prompt_mel)


def test_a_blend_of_one_is_itself_and_only_ratios_matter() -> None:
    anna, bert = someone("anna", 1), someone("bert", 2)
    assert blend([(anna, 2.0)]) == anna
    assert blend([(anna, 1.0), (anna, 2.0)]) == anna
    half, whole = blend([(anna, 1.0), (bert, 2.0)]), blend([(anna, 2.0), (bert, 4.0)])
    assert torch.allclose(half.speaker, whole.speaker)


def test_voices_of_two_families_do_not_blend() -> None:
    small = someone("anna", 1)
    other = Voice.checked(
        name="bert",
        family="wren",
        speaker=torch.ones(8),
        prompt_ids=small.prompt_ids,
        flow_prompt_ids=small.flow_prompt_ids,
        flow_prompt_mel=small.flow_prompt_mel,
        flow_speaker=torch.ones(8),
    )
    with pytest.raises(VoiceError, match="blended"):
        blend([(small, 1.0), (other, 1.0)])
    with pytest.raises(VoiceError, match="not a blend"):
        blend([(small, 0.0)])


def test_names_of_others_find_somebody() -> None:
    cast = ["bella", "fenrir", "heart", "zoe"]
    assert stand_in("nova", cast) == "heart"
    assert stand_in("onyx", cast) == "fenrir"
    assert stand_in("sage", cast) in cast, "a name whose voice is not here must still be somebody"
    assert stand_in("af_heart", cast) == "heart"
    assert stand_in("am_nobody", cast) is None
    assert stand_in("nobody", cast) is None
    assert stand_in("nova", []) is None


def test_a_blend_is_read_with_and_without_weights() -> None:
    assert read_blend("a(2)+b") == [("a", 2.0), ("b", 1.0)]
    assert read_blend(" A ( 0.5 ) + b_2 ") == [("a", 0.5), ("b_2", 1.0)]


def test_the_library_is_asked_before_the_aliases(home: Path, small: Callable[..., TTS]) -> None:
    nova = someone("nova", 3)
    library.add("nova", nova)
    roster = Roster(Settings(voice_aliases={"narrator": "nova"}))
    with small() as tts:
        assert roster.resolve("nova", tts) == nova
        assert roster.resolve({"id": "narrator"}, tts) == nova
        assert roster.resolve("alloy", tts) == tts.default_voice
        assert roster.resolve("nova+noise(3)", tts) is roster.resolve("nova+noise(3)", tts), "not remembered"
        library.add("nova", someone("nova", 4), replace=True)
        assert roster.resolve("nova", tts) == someone("nova", 4), "a changed voice was not read again"


@pytest.mark.parametrize("asked", ["21m00Tcm4TlvDq8ikWAM", "21M00TCM4TLVDQ8IKWAM", "21m00tcm4tlvdq8ikwam"])
def test_an_alias_is_known_whatever_its_case(home: Path, small: Callable[..., TTS], asked: str) -> None:
    """ElevenLabs' ids have capital letters, and no client of theirs writes them otherwise."""
    anna = someone("anna", 1)
    library.add("anna", anna)
    roster = Roster(Settings(voice_aliases={"21m00Tcm4TlvDq8ikWAM": "Anna"}))
    with small() as tts:
        assert roster.resolve(asked, tts) == anna
        assert roster.resolve(f"{asked}(2)+noise", tts) == roster.resolve("anna(2)+noise", tts)


@pytest.fixture
def folder_tts(noise_model: Model, small: Callable[..., TTS], tmp_path: Path) -> Iterator[TTS]:
    """An engine whose model came in a folder with voices of its own."""
    folder = tmp_path / "model" / "voices"
    folder.mkdir(parents=True)
    own = noise_model.default_voice
    assert own is not None
    for name in ("bella", "heart"):
        replace(own, name=name).save(folder / f"{name}.safetensors")
    with small() as tts:
        tts._voicing._model = tts._model = replace(tts._model, voices=folder)
        yield tts


def test_voices_of_a_model_s_folder_are_listed_speak_by_name_and_stay(folder_tts: TTS, home: Path) -> None:
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


def test_openai_s_names_mean_voices_of_the_model_s_folder(folder_tts: TTS, home: Path) -> None:
    roster = Roster(Settings())
    for name, meant in (("nova", "heart"), ("coral", "bella")):
        voice = roster.resolve(name, folder_tts)
        assert voice is not None
        assert voice.name == meant


def test_a_server_can_have_its_own_default_voice(home: Path, small: Callable[..., TTS]) -> None:
    anna = someone("anna", 1)
    library.add("anna", anna)
    roster = Roster(Settings(voice="anna"))
    with small() as tts:
        assert roster.resolve(None, tts) == anna
        assert roster.resolve("default", tts) == anna
        assert [card.id for card in roster.cards(tts) if card.default] == ["anna"]
