"""Stage `human-texts`, on a CPU machine with judges: the phonemes of people's recordings, from their transcripts.

    python -m nightingale_lab.train human-texts --clips DIR/human_clips.npz --hibari DIR

A recognizer (Whisper base) transcribes every clip, and the teacher's front end turns the transcript into phonemes.
human_phonemes.npz is written beside the clips. Where each phoneme is spoken is found in training
(`forced_alignment.py`). A clip whose transcript cannot be read in one way only has no phonemes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nightingale.clocks import ANALYSIS_RATE_HZ
from nightingale.text.english import normalize
from nightingale_lab.train.human_clips import read_clips
from nightingale_lab.train.texts import clean

FILE = "human_phonemes.npz"
RECOGNIZER = "base"
MIN_DISTINCT = 0.4
"""Share of a transcript's words that must differ: recordings of one repeated word train nothing."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `nightingale train human-texts`."""
    parser = argparse.ArgumentParser(prog="nightingale train human-texts", description=__doc__)
    parser.add_argument("--clips", type=Path, required=True, help="the file that human-clips wrote")
    parser.add_argument("--hibari", type=Path, required=True, help="folder of the unpacked wheel hibari-tts")
    parser.add_argument("--workers", type=int, default=2)
    return parser


def main(arguments: list[str] | None = None) -> None:
    from nightingale_lab.train.prepare import phoneme_ids

    args = build_parser().parse_args(arguments)
    clips = read_clips(args.clips)
    texts = [readable(text) for text in transcribe(clips, workers=args.workers)]
    known = [text for text in texts if text]
    spoken = iter(list(phoneme_ids(known, args.hibari, workers=args.workers)))
    phonemes = [next(spoken) if text else np.zeros(0, np.uint8) for text in texts]
    write_phonemes(args.clips.with_name(FILE), phonemes)
    sys.stderr.write(f"{sum(map(bool, map(len, phonemes)))} of {len(clips)} clips have phonemes\n")


def transcribe(clips: Sequence[NDArray[np.float32]], *, workers: int) -> list[str]:
    """Return a recognizer's transcript of each clip at 16 kHz."""
    import soundfile

    from nightingale_lab.bench.judges.client import judges_python, run_judges

    with tempfile.TemporaryDirectory() as scratch:
        paths = [Path(scratch) / f"{number}.wav" for number in range(len(clips))]
        for path, clip in zip(paths, clips, strict=True):
            soundfile.write(path, clip, ANALYSIS_RATE_HZ, subtype="PCM_16")
        jobs = [{"wav": str(path)} for path in paths]
        answers = run_judges(jobs, only=(RECOGNIZER,), python=judges_python(), workers=workers)
        found = {answer["wav"]: answer[RECOGNIZER]["transcript"] for answer in answers}
    return [found[str(path)] for path in paths]


def readable(transcript: str) -> str | None:
    """Return the transcript as wren's training text, or None where it is ambiguous or repeats few words."""
    text = clean(normalize(transcript))
    words = text.lower().split() if text else []
    return text if words and len(set(words)) >= MIN_DISTINCT * len(words) else None


def write_phonemes(path: Path, phonemes: Sequence[NDArray[np.uint8]]) -> None:
    counts = np.array([len(ids) for ids in phonemes], dtype=np.int32)
    np.savez_compressed(path, counts=counts, phonemes=np.concatenate([np.zeros(0, np.uint8), *phonemes]))


def read_phonemes(path: Path) -> list[NDArray[np.uint8]]:
    """Read what `write_phonemes` wrote: the phonemes of each clip, none where they are not known."""
    with np.load(path, allow_pickle=False) as stored:
        return list(np.split(stored["phonemes"], np.cumsum(stored["counts"])[:-1]))


if __name__ == "__main__":
    main()
