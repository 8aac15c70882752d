"""Find the stage that limits the quality of each voice: a table by Distill-MOS, then one line of JSON, which is stored.

    python -m nightingale_lab.bench.stage_quality CORPUS [--voices heart,bella] [--clips 20] [--model FOLDER]
    python -m nightingale_lab.bench.stage_quality RECORDINGS --voices heart

CORPUS has `clips.jsonl`, one line `[file, language, speaker, seconds, text]` per clip, and the clips in tar files; the
English ones of Kokoro's voice of each name are taken. RECORDINGS has `*.wav` of one voice, and `texts.txt` with a line
for each in name order. Each clip passes through four stages:

    recording   as it is
    vocoder     its mel through the vocoder
    flow        its speech tokens through flow and vocoder, with the model's voice of that name
    spoken      the model speaks the same text with that voice

`--keep DIR` leaves the recordings in DIR/voice/stage, where `python -m nightingale_lab.bench.score` judges their words.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nightingale.audio.read import read_audio
from nightingale.audio.resample import resample
from nightingale.audio.samples import wav_bytes
from nightingale.backends.torch.weights import load_voice_encoders
from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.engine import TTS
from nightingale.engine.load import Model
from nightingale.errors import ConfigError
from nightingale.models.layers.mel import FlowMel
from nightingale.types import Samples
from nightingale_lab import reference
from nightingale_lab.bench import runner
from nightingale_lab.bench.judges.client import judges_python
from nightingale_lab.bench.judges.score_folders import JUDGE, recordings, report
from nightingale_lab.bench.peers.peer_list import KOKORO_VOICES
from nightingale_lab.bench.quality import Ask, ask_with, clips_in

KIND = "stages"
STAGES = ("recording", "vocoder", "flow", "spoken")
LIST, TEXTS = "clips.jsonl", "texts.txt"
LANGUAGE = "en"
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One clip of a voice: the contents of its file, and its text."""

    data: bytes
    text: str


def from_corpus(folder: Path, voice: str, count: int) -> list[Recording]:
    """Return the first English clips of Kokoro's voice of that name."""
    rows = [json.loads(line) for line in (folder / LIST).read_text(encoding="utf-8").splitlines()]
    texts = {
        file: text
        for file, language, speaker, _, text in rows
        if (language, speaker) == (LANGUAGE, KOKORO_VOICES[voice])
    }
    chosen = dict(list(texts.items())[:count])
    found: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name in chosen and (source := archive.extractfile(member)):
                    found[member.name] = source.read()
    return [Recording(data=found[file], text=text) for file, text in chosen.items()]


def recordings_of(folder: Path, voice: str, count: int) -> list[Recording]:
    """Return the clips of a voice from a corpus, or from a folder of that one voice."""
    if (folder / LIST).exists():
        return from_corpus(folder, voice, count)
    clips = clips_in(folder, folder / TEXTS)[:count]
    return [Recording(data=clip.wav.read_bytes(), text=clip.text) for clip in clips]


def recorded(clip: Recording) -> Samples:
    """Return the clip's samples at the model's rate."""
    samples, rate_hz = read_audio(clip.data)
    return resample(samples, rate_hz, CLOCKS.sample_rate_hz)


@torch.inference_mode()
def through_vocoder(model: Model, samples: Samples) -> Samples:
    """Return the copy of a recording from its mel."""
    mel = FlowMel()(torch.from_numpy(samples)[None])[0]  # (mel, frames)
    return reference.samples_of(model, mel, seed=SEED)


@torch.inference_mode()
def through_flow(model: Model, samples: Samples, voice: str) -> Samples:
    """Return the copy of a recording from its speech tokens."""
    analysed = torch.from_numpy(resample(samples, CLOCKS.sample_rate_hz, ANALYSIS_RATE_HZ))
    ids = load_voice_encoders(model.source).speech_tokenizer.tokenize(analysed).tolist()
    return reference.samples_of(model, reference.mel_of(model, ids, seed=SEED, voice=voice), seed=SEED)


def stages(model: Model, tts: TTS, clip: Recording, voice: str) -> Iterator[tuple[str, Samples]]:
    """Yield each stage's name and samples."""
    samples = recorded(clip)
    yield "recording", samples
    yield "vocoder", through_vocoder(model, samples)
    yield "flow", through_flow(model, samples, voice)
    yield "spoken", tts.say(clip.text, voice=voice, seed=SEED).samples


def scores_of(folder: Path, voices: Iterable[str], ask: Ask) -> dict[str, dict[str, dict[str, Any]]]:
    """Judge `folder`/voice/stage, and return clips, mean and 10th percentile by voice and stage."""
    folders = {(voice, stage): folder / voice / stage for voice in voices for stage in STAGES}
    jobs = [{"wav": str(path)} for each in folders.values() for path in recordings(each)]
    found = report(list(folders.values()), ask(jobs, [JUDGE]))
    scores: dict[str, dict[str, dict[str, Any]]] = {}
    for (voice, stage), each in folders.items():
        kept = found[str(each)]
        scores.setdefault(voice, {})[stage] = {key: kept.get(key) for key in ("clips", "mean", "p10")}
    return scores


def table(scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> tuple[list[str], list[list[object]]]:
    """Return head and rows: for each voice the mean and the lowest tenth of each stage."""
    head = ["voice", "clips", *(column for stage in STAGES for column in (stage, "lowest tenth"))]
    rows: list[list[object]] = [
        [
            voice,
            stages["recording"]["clips"],
            *(stages[stage][part] for stage in STAGES for part in ("mean", "p10")),
        ]
        for voice, stages in scores.items()
    ]
    return head, rows


def parse(argv: Sequence[str] | None) -> Namespace:
    parser = runner.parser(__doc__)
    parser.add_argument("source", type=Path, help="a corpus, or the recordings and texts of one voice")
    parser.add_argument("--voices", default=",".join(KOKORO_VOICES), help="default: all of wren's")
    parser.add_argument("--clips", type=int, default=20, help="of each voice at most")
    parser.add_argument("--model", help="default: the model in the package")
    parser.add_argument(
        "--profile", default="exact", help="of the last stage; the others are computed in float32"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes of judges")
    parser.add_argument("--keep", type=Path, help="leave the recordings here")
    args = parser.parse_args(argv)
    args.voices = args.voices.split(",")
    if unknown := [voice for voice in args.voices if voice not in KOKORO_VOICES]:
        raise ConfigError("no such voice", got=", ".join(unknown), allowed=", ".join(KOKORO_VOICES))
    if len(args.voices) > 1 and not (args.source / LIST).exists():
        raise ConfigError(
            f"a folder without {LIST} has one voice",
            got=", ".join(args.voices),
            fix="Name the voice of the recordings with --voices.",
        )
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    ask = (lambda _, __: ()) if args.tiny else ask_with(judges_python(), args.workers)
    model = reference.load(args.model)
    with tempfile.TemporaryDirectory() as scratch, TTS(args.model, profile=args.profile) as tts:
        folder = args.keep or Path(scratch)
        for voice in args.voices:
            clips = recordings_of(args.source, voice, 1 if args.tiny else args.clips)
            for number, clip in enumerate(clips):
                for stage, samples in stages(model, tts, clip, voice):
                    path = folder / voice / stage / f"{number:03d}.wav"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(wav_bytes(samples, CLOCKS.sample_rate_hz))
                sys.stderr.write(f"\r{voice}: {number + 1}/{len(clips)}   ")
        scores = scores_of(folder, args.voices, ask)
    runner.print_table("Distill-MOS by stage", *table(scores))
    runner.finish({"kind": KIND, "profile": args.profile, "voices": scores}, KIND, args)


if __name__ == "__main__":
    main()
