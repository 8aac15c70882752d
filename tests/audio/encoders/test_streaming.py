"""Streaming encoders: complete when decoded, low latency, and independent of chunk sizes."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest

from nightingale.audio.encoders.streaming import FORMATS, OPUS_RATES_HZ, RATES_HZ, check_format, open_encoder
from nightingale.audio.samples import wav_header
from nightingale.errors import ConfigError
from nightingale.types import Samples

av = pytest.importorskip("av")

RATE_HZ = 24_000
CODED = ("mp3", "opus", "aac", "flac", "wav")


def tone(seconds: float = 1.0, pitch_hz: float = 440.0) -> Samples:
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    return (0.3 * np.sin(2 * np.pi * pitch_hz * t)).astype(np.float32)


def encoded(name: str, samples: Samples, size: int = 1920, **options: int) -> tuple[bytes, list[int]]:
    """Return the encoded recording, and the number of bytes after each chunk."""
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
def test_decoding_returns_the_same_audio(name: str) -> None:
    got, rate_hz = decoded(encoded(name, tone())[0])
    assert len(got) / rate_hz == pytest.approx(1.0, abs=0.11)  # lossy codecs add their delay
    assert pitch_of(got, rate_hz) == pytest.approx(440, abs=4)
    assert np.sqrt(np.mean(got**2)) == pytest.approx(0.3 / 2**0.5, rel=0.1)


@pytest.mark.parametrize("name", ["flac", "wav", "pcm"])
def test_lossless_formats_are_exact(name: str) -> None:
    given = tone(0.5)
    data = encoded(name, given)[0]
    got = np.frombuffer(data, "<i2") / 32768 if name == "pcm" else decoded(data)[0]
    assert np.array_equal(np.round(got * 32768), np.round(given * 32767))


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("ulaw", "alaw")])
def test_the_first_bytes_come_within_200_ms(name: str) -> None:
    _, sizes = encoded(name, tone(0.4), size=480)
    assert sizes[9] > 0, "nothing came out for 200 ms"
    assert sizes[-1] > sizes[9]


@pytest.mark.parametrize("name", [*CODED, "pcm", "ulaw", "alaw"])
def test_chunks_of_any_size_give_the_same_bytes(name: str) -> None:
    given = tone(0.5)
    wholes = {encoded(name, given, size)[0] for size in (333, 1920, len(given))}
    # The serial number of an Ogg stream is drawn at random, so bytes cannot be compared there.
    lengths = {len(whole) for whole in wholes}
    assert len(lengths if name == "opus" else wholes) == 1


@pytest.mark.parametrize("name", [*CODED, "pcm"])
@pytest.mark.parametrize("rate_hz", [16_000, 48_000])
def test_another_rate_has_the_same_pitch_and_length(name: str, rate_hz: int) -> None:
    data = encoded(name, tone(), sample_rate_hz=rate_hz)[0]
    got, got_hz = (np.frombuffer(data, "<i2") / 32768, rate_hz) if name == "pcm" else decoded(data)
    assert got_hz == (48_000 if name == "opus" else rate_hz)  # opus always plays at 48 kHz
    assert len(got) / got_hz == pytest.approx(1.0, abs=0.15)
    assert pitch_of(got.astype(np.float32), got_hz) == pytest.approx(440, abs=4)


def test_a_streamed_wav_has_an_unknown_length() -> None:
    data, _ = encoded("wav", tone(0.1))
    assert data[:4] == b"RIFF"
    assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff"
    assert data.count(b"RIFF") == 1


@pytest.mark.parametrize(("name", "decoder"), [("ulaw", "pcm_mulaw"), ("alaw", "pcm_alaw")])
def test_ffmpeg_decodes_telephony(name: str, decoder: str) -> None:
    given = (np.random.default_rng(1).uniform(-1, 1, 4000) ** 3).astype(np.float32)
    data, _ = encoded(name, given)
    codec = av.CodecContext.create(decoder, "r")
    codec.sample_rate, codec.layout = 8000, "mono"
    got = np.concatenate([f.to_ndarray().reshape(-1) for f in codec.decode(av.Packet(data))])
    assert np.abs(got / 32768 - given).max() < 0.03
    assert np.corrcoef(got, given)[0, 1] > 0.9995


def test_the_bit_rate_can_be_set() -> None:
    assert len(encoded("mp3", tone(), bit_rate=32_000)[0]) < 0.7 * len(encoded("mp3", tone())[0])


@pytest.mark.parametrize("name", FORMATS)
def test_an_encoder_without_samples_writes_at_most_a_header(name: str) -> None:
    data = open_encoder(name).finish()
    if name == "wav":
        assert data == wav_header(RATE_HZ)
    elif name == "flac":
        assert data.startswith(b"fLaC")
        with av.open(io.BytesIO(data)) as file:
            assert file.streams.audio[0].rate == RATE_HZ
            assert not list(file.decode(audio=0))
    else:
        assert data == b""


@pytest.mark.parametrize(
    ("name", "rate_hz", "message"),
    [
        ("opus", 44_100, "opus cannot have that sample rate: got 44100 Hz"),
        ("mp3", 7, "mp3 cannot have that sample rate: got 7 Hz"),
        ("pcm", 0, "pcm cannot have that sample rate: got 0 Hz"),
        ("ogg", 24_000, "no such format: got 'ogg'"),
    ],
)
def test_unknown_formats_and_rates_are_refused(name: str, rate_hz: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_format(name, rate_hz)


@pytest.mark.parametrize("name", CODED)
def test_every_listed_rate_works(name: str) -> None:
    for rate_hz in OPUS_RATES_HZ if name == "opus" else RATES_HZ:
        assert len(encoded(name, tone(0.2), sample_rate_hz=rate_hz)[0]) > 100


def test_the_table_does_not_import_ffmpeg() -> None:
    code = "import sys, nightingale.audio.encoders.streaming; sys.exit('av' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
