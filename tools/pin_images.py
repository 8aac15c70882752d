"""Pin the images that the Dockerfile and compose.yaml start from, by digest: `make image-lock`.

    ARG BASE=python:3.11-slim  ->  ARG BASE=python:3.11-slim@sha256:…

Docker is asked for the digest of each tag, so this needs Docker and a network. A pinned image stays the same until
this is run again.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

FILES = {"Dockerfile": r"^ARG BASE=(\S+)", "compose.yaml": r"^ +image: ([\w.-]+/\S+)"}
"""Files, and where they name an image that is pulled; those that are built here have no slash."""


def digest_of(image: str) -> str:
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        raise SystemExit(f"docker answered {found!r} for the digest of {image}, which is no digest")
    return found


def pinned(text: str, pattern: str) -> str:
    """Return a file's text with the digest of each image after its tag."""

    def replace(match: re.Match[str]) -> str:
        image = match[1].split("@")[0]
        return match[0].replace(match[1], f"{image}@{digest_of(image)}")

    return re.sub(pattern, replace, text, flags=re.MULTILINE)


def main(root: Path) -> None:
    for name, pattern in FILES.items():
        path = root / name
        path.write_text(pinned(path.read_text(encoding="utf-8"), pattern), encoding="utf-8")


if __name__ == "__main__":
    main(Path(__file__).resolve().parents[1])
