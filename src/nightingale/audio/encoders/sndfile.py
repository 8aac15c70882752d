"""FLAC, Ogg Vorbis and MP3 through libsndfile, as bytes. soundfile is imported when first used."""

from __future__ import annotations

import io

from nightingale.audio.encoders.wav import check_samples
from nightingale.errors import OutputError
from nightingale.types import Samples


def flac_bytes(samples: Samples, sample_rate_hz: int) -> bytes:
    return _encode(samples, sample_rate_hz, "FLAC", "PCM_16")


def ogg_bytes(samples: Samples, sample_rate_hz: int) -> bytes:
    return _encode(samples, sample_rate_hz, "OGG", "VORBIS")


def mp3_bytes(samples: Samples, sample_rate_hz: int) -> bytes:
    return _encode(samples, sample_rate_hz, "MP3", "MPEG_LAYER_III")


def _encode(samples: Samples, sample_rate_hz: int, form: str, subtype: str) -> bytes:
    import soundfile

    check_samples(samples)
    if not soundfile.check_format(form, subtype):
        raise OutputError(
            f"this machine's libsndfile cannot write {form}",
            got=soundfile.__libsndfile_version__,
            allowed="libsndfile 1.1 or newer for MP3",
            fix="Write .wav or .flac instead.",
        )
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, sample_rate_hz, format=form, subtype=subtype)
    return buffer.getvalue()
