"""A clip on disk to a voice: reading, both resamplers, loudness, cuts and the listening networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from chatterbox.mtl_tts import ChatterboxMultilingualTTS
from chatterbox.tts import ChatterboxTTS
from chatterbox.tts_turbo import ChatterboxTurboTTS
from clips import clip
from families import Family
from table import Rows
from upstream import Upstream, hushed

from nightingale.engine.cloning import enroll_file
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.models.chatterbox.build import VoiceEncoders
from nightingale.models.chatterbox.presets import PRESETS

WRAPPERS = {
    "english": ChatterboxTTS,
    "multilingual": ChatterboxMultilingualTTS,
    "turbo": ChatterboxTurboTTS,
    "nano": ChatterboxTurboTTS,
}


def compare(rows: Rows, family: Family, theirs: Upstream, ours: VoiceEncoders, folder: Path) -> None:
    """11.7 s, stereo, 44.1 kHz, 16 bits: longer than the flow's ten seconds, in need of everything."""
    path = folder / "clip.wav"
    stereo = np.stack([clip(11.7, 44_100, 1), clip(11.7, 44_100, 2)], axis=1)
    soundfile.write(path, stereo, 44_100, subtype="PCM_16")
    wrapper = _wrapper(family, theirs)
    with hushed(), torch.inference_mode():
        wrapper.prepare_conditionals(str(path))
    lm, flow = wrapper.conds.t3, wrapper.conds.gen
    voice = enroll_file(
        path,
        name="clip",
        family="chatterbox" if family.guided else "turbo",
        encoders=ours,
        defaults=MODEL_DEFAULTS[family.name],
        prompt_tokens=PRESETS[family.name].t3.prompt_tokens,
    ).voice
    rows.close("clip: T3's speaker vector", voice.speaker, lm.speaker_emb[0], relative=1e-5)
    rows.same_ids("clip: T3's prompt ids", voice.prompt_ids, lm.cond_prompt_speech_tokens, distinct=50)
    rows.same_ids("clip: flow's prompt ids", voice.flow_prompt_ids, flow["prompt_token"], distinct=50)
    rows.close("clip: flow's prompt mel", voice.flow_prompt_mel, flow["prompt_feat"][0], relative=1e-5)
    rows.close("clip: flow's speaker vector", voice.flow_speaker, flow["embedding"][0], relative=1e-5)


def _wrapper(family: Family, theirs: Upstream) -> Any:
    """Upstream's public class around these networks, without the watermark its constructor loads."""
    kind = WRAPPERS[family.name]
    wrapper = kind.__new__(kind)
    wrapper.t3, wrapper.s3gen, wrapper.ve, wrapper.device = (
        theirs.t3,
        theirs.s3gen,
        theirs.voice_encoder,
        "cpu",
    )
    return wrapper
