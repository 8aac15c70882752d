"""The encoders of a reference clip: speaker vector, speech ids, x-vector and the flow's mel."""

from __future__ import annotations

import torch

from nightingale.models.chatterbox.build import VoiceEncoders
from nightingale.models.layers.mel import FlowMel
from nightingale_lab.parity.clips import clip
from nightingale_lab.parity.table import Rows
from nightingale_lab.parity.upstream_weights import UpstreamNetworks


@torch.inference_mode()
def compare(rows: Rows, theirs: UpstreamNetworks, ours: VoiceEncoders) -> None:
    from chatterbox.models.s3gen.utils.mel import mel_spectrogram

    wav16 = torch.from_numpy(clip(7.3, 16_000))
    wav24 = torch.from_numpy(clip(4.1, 24_000))[None]
    voice = torch.from_numpy(theirs.voice_encoder.embeds_from_wavs([wav16.numpy()], sample_rate=16_000))
    rows.close("VoiceEncoder", ours.voice_encoder.embed(wav16), voice[0], relative=1e-5)
    ids, count = theirs.s3gen.tokenizer([wav16])
    rows.same_ids("S3 tokens", ours.speech_tokenizer.tokenize(wav16), ids[0, : count[0]], distinct=50)
    vector = theirs.s3gen.speaker_encoder.inference([wav16])
    assert ours.xvector is not None
    rows.close("CAMPPlus x-vector", ours.xvector.embed(wav16), vector[0], relative=1e-5)
    rows.close("mel 24 kHz", FlowMel()(wav24), mel_spectrogram(wav24), relative=1e-5)
