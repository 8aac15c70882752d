"""One encoder per recording: whole when decoded, early, and the same however the samples come."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest

from nightingale.audio.encoders.stream import FORMATS, OPUS_RATES_HZ, RATES_HZ, check_format, open_encoder
from nightingale.errors import ConfigError
from nightingale.types import Samples

av = pytest.importorskip("av")

RATE_HZ = 24_000
CODED = ("mp3", "opus", "aac", "flac", "wav")


def tone(seconds: float = 1.0, pitch_hz: float = 440.0) -> Samples:
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    return (0.3 * np.sin(2 * np.pi * pitch_hz * t)).astype(np.float32)


def encoded(name: str, samples: Samples, size: int = 1920, **options: int) -> tuple[bytes, list[int]]:
    """The recording, and how many bytes there were after each push."""
    encoder = open_encoder(name, **options)
    whole, sizes = b"", []
    for at in range(0, len(samples), size):
        whole += encoder.feed(samples[at : at + size])
        sizes.append(len(whole))
    return whole + encoder.finish(), sizes


def decoded(data: bytes) -> tuple[Samples, int]:
    with av.open(io.BytesIO(data)) as file:
        frames = [frame.to_ndarray() for frame in file.decode(audio=0)]
        rate_hz = file.streams.audio[0].rate
    joined = np.concatenate([frame.reshape(-1) for frame in frames])
    return (joined / 32768 if joined.dtype == np.int16 else joined).astype(np.float32), rate_hz


def pitch_of(samples: Samples, rate_hz: int) -> float:
    middle = samples[len(samples) // 4 : -len(samples) // 4]
    return float(np.argmax(np.abs(np.fft.rfft(middle))) * rate_hz / len(middle))


@pytest.mark.parametrize("name", CODED)
def test_what_was_said_is_what_is_heard(name: str) -> None:
    heard, rate_hz = decoded(encoded(name, tone())[0])
    assert len(heard) / rate_hz == pytest.approx(1.0, abs=0.11)  # lossy codecs add their delay
    assert pitch_of(heard, rate_hz) == pytest.approx(440, abs=4)
    assert np.sqrt(np.mean(heard**2)) == pytest.approx(0.3 / 2**0.5, rel=0.1)


@pytest.mark.parametrize("name", ["flac", "wav", "pcm"])
def test_what_loses_nothing_loses_nothing(name: str) -> None:
    said = tone(0.5)
    data = encoded(name, said)[0]
    heard = np.frombuffer(data, "<i2") / 32768 if name == "pcm" else decoded(data)[0]
    assert np.array_equal(np.round(heard * 32768), np.round(said * 32767))


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "ulaw"])
def test_sound_leaves_within_a_fifth_of_a_second(name: str) -> None:
    _, sizes = encoded(name, tone(0.4), size=480)
    assert sizes[9] > 0, "nothing came out for 200 ms"
    assert sizes[-1] > sizes[9]


@pytest.mark.parametrize("name", [*CODED, "pcm", "ulaw"])
def test_chunks_of_any_size_give_the_same_bytes(name: str) -> None:
    said = tone(0.5)
    wholes = {encoded(name, said, size)[0] for size in (333, 1920, len(said))}
    # The serial number of an Ogg stream is drawn at random, so bytes cannot be compared there.
    lengths = {len(whole) for whole in wholes}
    assert len(lengths if name == "opus" else wholes) == 1


@pytest.mark.parametrize("name", [*CODED, "pcm"])
@pytest.mark.parametrize("rate_hz", [16_000, 48_000])
def test_another_rate_has_the_same_pitch_and_length(name: str, rate_hz: int) -> None:
    data = encoded(name, tone(), sample_rate_hz=rate_hz)[0]
    heard, heard_hz = (np.frombuffer(data, "<i2") / 32768, rate_hz) if name == "pcm" else decoded(data)
    assert heard_hz == (48_000 if name == "opus" else rate_hz)  # opus always plays at 48 kHz
    assert len(heard) / heard_hz == pytest.approx(1.0, abs=0.15)
    assert pitch_of(heard.astype(np.float32), heard_hz) == pytest.approx(440, abs=4)


def test_a_stream_s_wav_says_that_its_length_is_unknown() -> None:
    data, _ = encoded("wav", tone(0.1))
    assert data[:4] == b"RIFF"
    assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff"
    assert data.count(b"RIFF") == 1


def test_mulaw_is_what_ffmpeg_calls_mulaw() -> None:
    said = (np.random.default_rng(1).uniform(-1, 1, 4000) ** 3).astype(np.float32)
    data, _ = encoded("ulaw", said)
    codec = av.CodecContext.create("pcm_mulaw", "r")
    codec.sample_rate, codec.layout = 8000, "mono"
    heard = np.concatenate([f.to_ndarray().reshape(-1) for f in codec.decode(av.Packet(data))])
    assert np.abs(heard / 32768 - said).max() < 0.03
    assert np.corrcoef(heard, said)[0, 1] > 0.9995


def test_a_bit_rate_can_be_asked_for() -> None:
    assert len(encoded("mp3", tone(), bit_rate=32_000)[0]) < 0.7 * len(encoded("mp3", tone())[0])


def test_an_encoder_that_heard_nothing_ends_without_a_fault() -> None:
    for name in FORMATS:
        assert isinstance(open_encoder(name).finish(), bytes)


@pytest.mark.parametrize(("name", "rate_hz"), [("opus", 44_100), ("mp3", 7), ("pcm", 0), ("ogg", 24_000)])
def test_what_cannot_be_encoded_is_refused_by_name(name: str, rate_hz: int) -> None:
    with pytest.raises(ConfigError):
        check_format(name, rate_hz)


@pytest.mark.parametrize("name", CODED)
def test_every_rate_that_is_offered_works(name: str) -> None:
    for rate_hz in OPUS_RATES_HZ if name == "opus" else RATES_HZ:
        assert len(encoded(name, tone(0.2), sample_rate_hz=rate_hz)[0]) > 100


def test_the_table_does_not_import_ffmpeg() -> None:
    code = "import sys, nightingale.audio.encoders.stream; sys.exit('av' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
