"""Stage `human-clips`, on a CPU machine: pack recordings of people into one small file for the training machine.

    python -m nightingale_lab.train human-clips --out DIR/human_clips.npz FOLDER …

A recording in a FOLDER is one speaker; a subfolder is one speaker too, and its recordings are joined.
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nightingale.audio.read import read_audio
from nightingale.audio.resample import resample
from nightingale.clocks import ANALYSIS_RATE_HZ
from nightingale_lab.train.clip_codec import CodedClip, decode, encode

FILE = "human_clips.npz"
SUFFIXES = (".flac", ".wav", ".mp3")
MAX_SECONDS, MIN_SECONDS = 14.0, 2.0
JOINED_SECONDS = 12.0
"""A subfolder's recordings are joined until they are this long."""
SILENCE_DB = 40.0
PEAK = 0.9


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `nightingale train human-clips`."""
    parser = argparse.ArgumentParser(prog="nightingale train human-clips", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("folders", type=Path, nargs="+")
    return parser


def main(arguments: list[str] | None = None) -> None:
    args = build_parser().parse_args(arguments)
    clips = [clip for folder in args.folders for clip in read_speakers(folder)]
    write_clips(args.out, clips)
    seconds = sum(map(len, clips)) / ANALYSIS_RATE_HZ
    sys.stderr.write(f"{len(clips)} speakers, {seconds:.0f} s, {args.out.stat().st_size / 2**20:.1f} MiB\n")


def read_speakers(folder: Path) -> Iterator[NDArray[np.float32]]:
    """Yield the samples of each speaker in a folder, at 16 kHz."""
    for path in sorted(folder.iterdir()):
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = [file for file in files if file.suffix in SUFFIXES]
        joined, samples = path.is_dir(), np.zeros(0, np.float32)
        for file in files:
            if joined and len(samples) > JOINED_SECONDS * ANALYSIS_RATE_HZ:
                break
            clip, rate_hz = read_audio(file)
            clip = _trimmed(resample(clip, rate_hz, ANALYSIS_RATE_HZ))
            samples = np.concatenate([samples, clip * (PEAK / max(PEAK, float(np.abs(clip).max())))])
        samples = samples[: int(MAX_SECONDS * ANALYSIS_RATE_HZ)]
        if len(samples) >= MIN_SECONDS * ANALYSIS_RATE_HZ:
            yield samples


def _trimmed(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cut silence at both ends to a tenth of a second."""
    hop = ANALYSIS_RATE_HZ // 100
    power = np.square(samples[: len(samples) // hop * hop].reshape(-1, hop)).mean(1)
    loud = np.flatnonzero(power > power.max(initial=0.0) * 10 ** (-SILENCE_DB / 10))
    return samples[max(0, loud[0] - 10) * hop : (loud[-1] + 11) * hop] if len(loud) else samples[:0]


def write_clips(path: Path, clips: Sequence[NDArray[np.float32]]) -> None:
    """Write clips at 16 kHz, coded, as an npz with LZMA compression."""
    coded = [encode(samples) for samples in clips]
    arrays = {
        "frames": np.array([len(clip.codes) for clip in coded], dtype=np.int32),
        "levels": np.concatenate([clip.levels for clip in coded]),
        "codes": np.concatenate([clip.codes for clip in coded]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", buffer.getvalue())


def read_clips(path: Path) -> list[NDArray[np.float32]]:
    """Read what `write_clips` wrote; clips are whole numbers of 20 ms."""
    with np.load(path, allow_pickle=False) as stored:
        ends, levels, codes = np.cumsum(stored["frames"])[:-1], stored["levels"], stored["codes"]
    pairs = zip(np.split(levels, ends), np.split(codes, ends), strict=True)
    return [decode(CodedClip(levels=level, codes=code)) for level, code in pairs]


if __name__ == "__main__":
    main()
