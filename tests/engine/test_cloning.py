"""Reference clips to voices: the steps of upstream, and how unusable clips are refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from nightingale import TTS, BadReference, Voice, VoiceError, VoiceNotFound
from nightingale.audio.loudness import integrated_loudness
from nightingale.audio.resample import resample, resample_sinc
from nightingale.backends.base import ModelInfo
from nightingale.backends.noise.encoders import NoiseEncoders
from nightingale.engine.cloning import clone
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.defaults import MODEL_DEFAULTS, TURBO
from nightingale.types import Samples

RATE = 24_000


def clip(seconds: float, rate_hz: int = RATE, *, level: float = 0.3) -> np.ndarray:
    """Return a frequency sweep with a little noise."""
    t = np.arange(int(seconds * rate_hz)) / rate_hz
    rng = np.random.default_rng(0)
    sweep = np.sin(2 * np.pi * (180 * t + 40 * np.sin(3 * t)))
    return (level * sweep + 0.01 * rng.standard_normal(len(t))).astype(np.float32)


def write(path: Path, samples: np.ndarray, rate_hz: int = RATE, **form: str) -> Path:
    soundfile.write(path, samples, rate_hz, **form)
    return path


class RecordingEncoders:
    """Encoders that remember what each of them was given."""

    def __init__(self) -> None:
        self.tokenized: list[tuple[Samples, int | None]] = []
        self.embedded: list[Samples] = []
        self.flow_embedded: list[Samples] = []

    def tokenize(self, samples_16k: Samples, max_tokens: int | None = None) -> np.ndarray:
        self.tokenized.append((samples_16k, max_tokens))
        return np.arange(len(samples_16k) * 25 // 16_000)[:max_tokens]

    def speaker(self, samples_16k: Samples) -> np.ndarray:
        self.embedded.append(samples_16k)
        return np.ones(256, np.float32)

    def flow_speaker(self, samples_16k: Samples) -> np.ndarray:
        self.flow_embedded.append(samples_16k)
        return np.ones(192, np.float32)

    def flow_mel(self, samples_24k: Samples) -> np.ndarray:
        return np.zeros((len(samples_24k) // 480, 80), np.float32)


def cloned(samples: np.ndarray, model: str, family: str) -> tuple[RecordingEncoders, Voice]:
    encoders = RecordingEncoders()
    info = ModelInfo(name=model, preset=PRESETS[model], defaults=MODEL_DEFAULTS[model])
    voice = clone(samples, RATE, name="a", source="a", family=family, encoders=encoders, info=info)
    return encoders, voice


def test_the_two_sides_use_their_own_resamplers() -> None:
    samples = clip(12.0)
    encoders, voice = cloned(samples, "english", "chatterbox")
    soxr, sinc = resample(samples, RATE, 16_000), resample_sinc(samples[: 10 * RATE], RATE, 16_000)
    (shown, shown_limit), (prompt, prompt_limit) = encoders.tokenized
    assert np.array_equal(shown, sinc)
    assert shown_limit is None
    assert np.array_equal(encoders.flow_embedded[0], sinc)
    assert np.array_equal(prompt, soxr[: 6 * 16_000])
    assert prompt_limit == 150
    assert np.array_equal(encoders.embedded[0], soxr)  # the whole clip
    assert not np.allclose(soxr[: len(sinc)], sinc, atol=1e-5)
    assert (len(voice.prompt_ids), len(voice.flow_prompt_ids), len(voice.flow_prompt_mel)) == (150, 250, 500)


def test_turbo_encodes_fifteen_seconds_at_its_own_loudness() -> None:
    samples = clip(16.0, level=0.9)
    encoders, voice = cloned(samples, "turbo", "turbo")
    assert len(encoders.tokenized[1][0]) == 15 * 16_000
    assert len(voice.prompt_ids) == 375
    assert integrated_loudness(encoders.embedded[0], 16_000) == pytest.approx(-27.0, abs=0.2)
    plain, _ = cloned(samples, "english", "chatterbox")
    assert integrated_loudness(plain.embedded[0], 16_000) > -10


@pytest.mark.parametrize("samples", [RATE * 2, RATE * 2 + 1, RATE * 2 + 479, RATE * 2 + 480, RATE * 2 + 961])
def test_a_clip_of_any_length_has_two_frames_for_each_token(samples: int) -> None:
    _, voice = cloned(clip(3.0)[:samples], "english", "chatterbox")
    assert len(voice.flow_prompt_mel) == 2 * len(voice.flow_prompt_ids) > 0


CLIPS: dict[str, Callable[[Path], Path]] = {
    "wav": lambda at: write(at / "a.wav", clip(2.0)),
    "flac": lambda at: write(at / "a.flac", clip(2.0)),
    "ogg": lambda at: write(at / "a.ogg", clip(2.0)),
    "mp3": lambda at: write(at / "a.mp3", clip(2.0)),
    "stereo": lambda at: write(at / "a.wav", np.stack([clip(2.0), 0.5 * clip(2.0)], axis=1)),
    "8 kHz": lambda at: write(at / "a.wav", clip(2.0, 8_000), 8_000),
    "44.1 kHz": lambda at: write(at / "a.wav", clip(2.0, 44_100), 44_100),
    "48 kHz": lambda at: write(at / "a.wav", clip(2.0, 48_000), 48_000),
    "odd length": lambda at: write(at / "a.wav", clip(2.0)[:-17]),
    "just long enough": lambda at: write(at / "a.wav", clip(1.01)),
    "more than one window": lambda at: write(at / "a.wav", clip(35.0, 8_000), 8_000),
    "clipped": lambda at: write(at / "a.wav", np.clip(clip(2.0, level=3.0), -1, 1)),
    "a click in silence": lambda at: write(at / "a.wav", np.pad(clip(0.01), (RATE, RATE))),
    "sound at the very end": lambda at: write(at / "a.wav", np.pad(clip(0.05), (2 * RATE, 0))),
    "8-bit": lambda at: write(at / "a.wav", clip(2.0), subtype="PCM_U8"),
}


@pytest.mark.parametrize("kind", CLIPS)
def test_a_usable_clip_becomes_a_voice(kind: str, brief: TTS, tmp_path: Path) -> None:
    voice = brief.voice(CLIPS[kind](tmp_path))
    assert voice.family == "wren"
    assert 0 < len(voice.prompt_ids) <= 16
    assert np.isfinite(voice.speaker).all()
    assert voice.name == "a"


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "one second": (lambda at: write(at / "a.wav", clip(1.0)), "too short"),
    "a tenth": (lambda at: write(at / "a.wav", clip(0.1)), "too short"),
    "silence": (lambda at: write(at / "a.wav", np.zeros(2 * RATE)), "silent"),
    "near silence": (lambda at: write(at / "a.wav", clip(2.0, level=1e-5) * 1e-2), "silent"),
    "nothing": (lambda at: write(at / "a.wav", np.zeros(0)), "no samples"),
    "NaN": (lambda at: write(at / "a.wav", np.full(2 * RATE, np.nan), subtype="FLOAT"), "not finite"),
    "text": (lambda at: _file(at / "a.wav", b"This is not a recording."), "cannot be decoded"),
    "empty": (lambda at: _file(at / "a.wav", b""), "empty"),
    "half a header": (lambda at: _file(at / "a.flac", _flac()[:30]), "cannot be decoded"),
}


def _file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _flac() -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, clip(2.0), RATE, format="FLAC")
    return buffer.getvalue()


@pytest.mark.parametrize("kind", REFUSED)
def test_an_unusable_clip_is_refused_by_reason(kind: str, brief: TTS, tmp_path: Path) -> None:
    make, reason = REFUSED[kind]
    with pytest.raises(BadReference) as refusal:
        brief.voice(make(tmp_path))
    assert reason in refusal.value.what


def test_turbo_refuses_a_clip_of_five_seconds(tts_with: Any, tmp_path: Path) -> None:
    turbo = tts_with(defaults={"reference_longer_than_s": TURBO.reference_longer_than_s})
    with pytest.raises(BadReference, match="more than 5 s"):
        turbo.voice(write(tmp_path / "a.wav", clip(5.0)))


def test_a_clipped_clip_is_logged(brief: TTS, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "nightingale.engine"):
        voice = brief.voice(write(tmp_path / "a.wav", np.clip(clip(2.0, level=3.0), -1, 1)))
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("a.wav: ")
    assert "clipped" in message
    assert voice.provenance == "reference clip a.wav, 2.0 s"


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the clips whose speaker embedding was computed."""
    lengths: list[int] = []
    plain = NoiseEncoders.speaker

    def speaker(self: NoiseEncoders, samples_16k: Samples) -> np.ndarray:
        lengths.append(len(samples_16k))
        return plain(self, samples_16k)

    monkeypatch.setattr(NoiseEncoders, "speaker", speaker)
    return lengths


def test_a_clip_is_encoded_once(brief: TTS, encoded: list[int], tmp_path: Path) -> None:
    first = brief.voice(write(tmp_path / "a.wav", clip(2.0)))
    assert brief.voice(write(tmp_path / "b.wav", clip(2.0))) == first
    assert len(encoded) == 1
    assert brief.voice(write(tmp_path / "c.wav", clip(2.1))) != first
    assert len(encoded) == 2


def test_another_checkpoint_encodes_a_clip_again(tts_with: Any, encoded: list[int], tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", clip(2.0))
    for fingerprint in ("one", "two"):
        tts_with(fingerprint=fingerprint).voice(path)
    assert len(encoded) == 2


def test_a_voice_can_be_saved_named_and_used(brief: TTS, tmp_path: Path) -> None:
    from nightingale.voices import library

    voice = brief.voice(write(tmp_path / "a.wav", clip(2.0)))
    voice.save(tmp_path / "a.safetensors")
    library.add("anna", voice)
    digests = {
        brief.say("Hello", voice=used, seed=1).sha256
        for used in (voice, tmp_path / "a.wav", str(tmp_path / "a.safetensors"), "anna")
    }
    assert len(digests) == 1
    assert brief.say("Hello", seed=1).sha256 not in digests


def of_another_family(voice: Voice) -> Voice:
    return Voice.checked(
        name="other",
        family="turbo",
        speaker=np.ones(256),
        prompt_ids=voice.prompt_ids,
        flow_prompt_ids=voice.flow_prompt_ids,
        flow_prompt_mel=voice.flow_prompt_mel,
        flow_speaker=np.ones(192),
    )


def test_a_voice_of_another_family_is_refused(brief: TTS, noise_model: Any, tmp_path: Path) -> None:
    other = of_another_family(noise_model.default_voice)
    other.save(tmp_path / "other.safetensors")
    for used in (other, tmp_path / "other.safetensors"):
        with pytest.raises(VoiceError, match="made for another model"):
            brief.say("Hello", voice=used)


def test_a_voice_of_another_size_is_refused(brief: TTS, noise_model: Any) -> None:
    with pytest.raises(VoiceError, match="made for another model"):
        brief.say("Hello", voice=replace(noise_model.default_voice, speaker=np.ones(17)))


@pytest.mark.parametrize("reference", ["nobody", "no/such.wav", "No Such Name", "gone.safetensors", "", "."])
def test_a_voice_that_is_not_there_is_named(reference: str, brief: TTS) -> None:
    with pytest.raises(VoiceNotFound) as refusal:
        brief.voice(reference)
    assert refusal.value.exit_code == 6


def test_a_damaged_voice_file_is_refused(brief: TTS, tmp_path: Path) -> None:
    for name in ("a.safetensors", "a.pt"):
        with pytest.raises(VoiceError):
            brief.voice(_file(tmp_path / name, b"damaged"))
