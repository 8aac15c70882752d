"""Voice cloning from a file: reading, both resamplers, loudness, trimming and the encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from nightingale.audio.read import read_audio
from nightingale.backends.base import ModelInfo
from nightingale.backends.torch.encoders import TorchEncoders
from nightingale.engine.cloning import clone
from nightingale.models.chatterbox.build import VoiceEncoders
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.voices.voice import Voice
from nightingale_lab.parity.clips import clip
from nightingale_lab.parity.table import Rows
from nightingale_lab.parity.upstream_weights import UpstreamNetworks
from nightingale_lab.upstream.families import Family
from nightingale_lab.upstream.networks import quiet


def write_clip(folder: Path) -> Path:
    """Write 11.7 s of 16-bit stereo at 44.1 kHz: longer than the flow's ten seconds, at a foreign rate."""
    import soundfile

    path = folder / "clip.wav"
    stereo = np.stack([clip(11.7, 44_100, 1), clip(11.7, 44_100, 2)], axis=1)
    soundfile.write(path, stereo, 44_100, subtype="PCM_16")
    return path


def run_theirs(family: Family, networks: UpstreamNetworks, path: Path) -> Any:
    """Return the conditionals of upstream's public class, built without the watermark it would load."""
    from chatterbox.mtl_tts import ChatterboxMultilingualTTS
    from chatterbox.tts import ChatterboxTTS
    from chatterbox.tts_turbo import ChatterboxTurboTTS

    kind = {"english": ChatterboxTTS, "multilingual": ChatterboxMultilingualTTS}.get(
        family.name, ChatterboxTurboTTS
    )
    wrapper = kind.__new__(kind)
    wrapper.t3, wrapper.s3gen, wrapper.ve = networks.t3, networks.s3gen, networks.voice_encoder
    wrapper.device = "cpu"
    with quiet(), torch.inference_mode():
        wrapper.prepare_conditionals(str(path))
    return wrapper.conds


def run_ours(family: Family, encoders: VoiceEncoders, path: Path) -> Voice:
    info = ModelInfo(name=family.name, preset=PRESETS[family.name], defaults=MODEL_DEFAULTS[family.name])
    networks = TorchEncoders(encoders)
    samples, rate_hz = read_audio(path)
    voice_family = family.voice_family
    return clone(
        samples, rate_hz, name="clip", source=path.name, family=voice_family, encoders=networks, info=info
    )


def compare(rows: Rows, voice: Voice, conds: Any) -> None:
    lm, flow = conds.t3, conds.gen
    exact: dict[str, tuple[Any, Any]] = {
        "T3's prompt ids": (voice.prompt_ids, lm.cond_prompt_speech_tokens),
        "flow's prompt ids": (voice.flow_prompt_ids, flow["prompt_token"]),
    }
    near: dict[str, tuple[Any, Any]] = {
        "T3's speaker vector": (voice.speaker, lm.speaker_emb[0]),
        "flow's prompt mel": (voice.flow_prompt_mel, flow["prompt_feat"][0]),
        "flow's speaker vector": (voice.flow_speaker, flow["embedding"][0]),
    }
    for name, (ours, theirs) in exact.items():
        rows.same_ids(f"clip: {name}", torch.as_tensor(ours), theirs, distinct=50)
    for name, (ours, theirs) in near.items():
        rows.close(f"clip: {name}", torch.as_tensor(ours), theirs, relative=1e-5)
