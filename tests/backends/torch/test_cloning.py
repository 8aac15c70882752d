"""Reference clips to voices: what upstream does with a good one, and what becomes of every other kind."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from nightingale import TTS, BadReference, Voice, VoiceError, VoiceNotFound
from nightingale.audio.loudness import integrated_loudness
from nightingale.audio.resample import resample, resample_sinc
from nightingale.engine.cloning import enroll, enroll_file
from nightingale.models.defaults import ENGLISH, TURBO, ModelDefaults
from nightingale.models.chatterbox.build import VoiceEncoders

RATE = 24_000


def clip(seconds: float, rate_hz: int = RATE, *, level: float = 0.3) -> np.ndarray:
    """Something between a voice and a siren, with a little noise."""
    t = np.arange(int(seconds * rate_hz)) / rate_hz
    rng = np.random.default_rng(0)
    sweep = np.sin(2 * np.pi * (180 * t + 40 * np.sin(3 * t)))
    return (level * sweep + 0.01 * rng.standard_normal(len(t))).astype(np.float32)


def write(path: Path, samples: np.ndarray, rate_hz: int = RATE, **form: str) -> Path:
    soundfile.write(path, samples, rate_hz, **form)
    return path


class Ears:
    """Stand in for all three listeners and remember what each was given."""

    def __init__(self) -> None:
        self.tokenized: list[tuple[Tensor, int | None]] = []
        self.embedded: list[Tensor] = []
        self.seen: list[Tensor] = []

    def tokenize(self, wav: Tensor, max_tokens: int | None = None) -> Tensor:
        self.tokenized.append((wav, max_tokens))
        return torch.arange(len(wav) * 25 // 16_000)[:max_tokens]

    def listeners(self) -> VoiceEncoders:
        voice_encoder, xvector = type(self)(), type(self)()
        voice_encoder.embed = lambda wav: (self.embedded.append(wav), torch.ones(256))[1]  # type: ignore[attr-defined]
        xvector.embed = lambda wav: (self.seen.append(wav), torch.ones(192))[1]  # type: ignore[attr-defined]
        return VoiceEncoders(speech_tokenizer=self, voice_encoder=voice_encoder, xvector=xvector)  # type: ignore[arg-type]


def heard_by(samples: np.ndarray, defaults: ModelDefaults, family: str) -> tuple[Ears, Voice]:
    ears = Ears()
    voice = enroll(
        samples,
        name="a",
        family=family,
        encoders=ears.encoders(),
        defaults=defaults,
        prompt_tokens=150 if family == "chatterbox" else 375,
        provenance="",
    )
    return ears, voice


def test_the_two_sides_use_their_own_resamplers() -> None:
    samples = clip(12.0)
    ears, voice = heard_by(samples, ENGLISH, "chatterbox")
    soxr, sinc = resample(samples, RATE, 16_000), resample_sinc(samples[: 10 * RATE], RATE, 16_000)
    (shown, shown_limit), (prompt, prompt_limit) = ears.tokenized
    assert np.array_equal(shown.numpy(), sinc)
    assert shown_limit is None
    assert np.array_equal(ears.seen[0].numpy(), sinc)
    assert np.array_equal(prompt.numpy(), soxr[: 6 * 16_000])
    assert prompt_limit == 150
    assert np.array_equal(ears.embedded[0].numpy(), soxr)  # the whole clip
    assert not np.allclose(soxr[: len(sinc)], sinc, atol=1e-5)
    assert (len(voice.prompt_ids), len(voice.flow_prompt_ids), len(voice.flow_prompt_mel)) == (150, 250, 500)


def test_turbo_hears_fifteen_seconds_at_its_own_loudness() -> None:
    samples = clip(16.0, level=0.9)
    ears, voice = heard_by(samples, TURBO, "turbo")
    assert len(ears.tokenized[1][0]) == 15 * 16_000
    assert len(voice.prompt_ids) == 375
    assert integrated_loudness(ears.embedded[0].numpy(), 16_000) == pytest.approx(-27.0, abs=0.2)
    plain, _ = heard_by(samples, ENGLISH, "chatterbox")
    assert integrated_loudness(plain.embedded[0].numpy(), 16_000) > -10


@pytest.mark.parametrize("samples", [RATE * 2, RATE * 2 + 1, RATE * 2 + 479, RATE * 2 + 480, RATE * 2 + 961])
def test_a_clip_of_any_length_has_two_frames_for_each_token(samples: int) -> None:
    _, voice = heard_by(clip(3.0)[:samples], ENGLISH, "chatterbox")
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
    assert torch.isfinite(voice.speaker).all()
    assert voice.name == "a"


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "one second": (lambda at: write(at / "a.wav", clip(1.0)), "too short"),
    "a tenth": (lambda at: write(at / "a.wav", clip(0.1)), "too short"),
    "silence": (lambda at: write(at / "a.wav", np.zeros(2 * RATE)), "silent"),
    "near silence": (lambda at: write(at / "a.wav", clip(2.0, level=1e-5) * 1e-2), "silent"),
    "nothing": (lambda at: write(at / "a.wav", np.zeros(0)), "no sound"),
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


def test_a_clipped_clip_is_warned_about(tiny_model: Any, tmp_path: Path) -> None:
    enrolled = enroll_file(
        write(tmp_path / "a.wav", np.clip(clip(2.0, level=3.0), -1, 1)),
        name="a",
        family="wren",
        encoders=tiny_model.encoders(),
        defaults=tiny_model.defaults,
        prompt_tokens=16,
    )
    assert "clipped" in enrolled.warnings[0]
    assert enrolled.voice.provenance == "reference clip a.wav, 2.0 s"


def test_a_clip_is_listened_to_once(tts_with: Any, tiny_model: Any, tmp_path: Path) -> None:
    calls: list[int] = []
    tts = tts_with(encoders=lambda: (calls.append(1), tiny_model.encoders())[1])
    first = tts.voice(write(tmp_path / "a.wav", clip(2.0)))
    assert tts.voice(write(tmp_path / "b.wav", clip(2.0))) == first
    assert len(calls) == 1
    assert tts.voice(write(tmp_path / "c.wav", clip(2.1))) != first
    assert len(calls) == 2


def test_another_checkpoint_listens_again(tts_with: Any, tiny_model: Any, tmp_path: Path) -> None:
    calls: list[int] = []
    path = write(tmp_path / "a.wav", clip(2.0))
    for fingerprint in ("one", "two"):
        listeners = lambda: (calls.append(1), tiny_model.encoders())[1]  # noqa: E731
        tts_with(encoders=listeners, fingerprint=fingerprint).voice(path)
    assert len(calls) == 2


def test_a_voice_can_be_saved_named_and_worn(brief: TTS, tmp_path: Path) -> None:
    from nightingale.voices import library

    voice = brief.voice(write(tmp_path / "a.wav", clip(2.0)))
    voice.save(tmp_path / "a.safetensors")
    library.add("anna", voice)
    heard = {
        brief.say("Hello", voice=worn, seed=1).sha256
        for worn in (voice, tmp_path / "a.wav", str(tmp_path / "a.safetensors"), "anna")
    }
    assert len(heard) == 1
    assert brief.say("Hello", seed=1).sha256 not in heard


def of_another_family(voice: Voice) -> Voice:
    return Voice.checked(
        name="other",
        family="turbo",
        speaker=torch.ones(256),
        prompt_ids=voice.prompt_ids,
        flow_prompt_ids=voice.flow_prompt_ids,
        flow_prompt_mel=voice.flow_prompt_mel,
        flow_speaker=torch.ones(192),
    )


def test_a_voice_of_another_family_is_refused(brief: TTS, tiny_model: Any, tmp_path: Path) -> None:
    other = of_another_family(tiny_model.default_voice)
    other.save(tmp_path / "other.safetensors")
    for worn in (other, tmp_path / "other.safetensors"):
        with pytest.raises(VoiceError, match="made for another model"):
            brief.say("Hello", voice=worn)


def test_a_voice_of_another_size_is_refused(brief: TTS, tiny_model: Any) -> None:
    with pytest.raises(VoiceError, match="made for another model"):
        brief.say("Hello", voice=replace(tiny_model.default_voice, speaker=torch.ones(17)))


@pytest.mark.parametrize("reference", ["nobody", "no/such.wav", "No Such Name", "gone.safetensors", "", "."])
def test_a_voice_that_is_not_there_is_named(reference: str, brief: TTS) -> None:
    with pytest.raises(VoiceNotFound) as refusal:
        brief.voice(reference)
    assert refusal.value.exit_code == 6


def test_a_damaged_voice_file_is_refused(brief: TTS, tmp_path: Path) -> None:
    for name in ("a.safetensors", "a.pt"):
        with pytest.raises(VoiceError):
            brief.voice(_file(tmp_path / name, b"damaged"))
