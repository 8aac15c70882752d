"""Recordings of people: the codec, the copies at other speeds, and what losses leave out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lab.train.tiny_training import SMALL, make_everything_tiny
from safetensors.torch import load_file, save_file

from nightingale.models.chatterbox.encoders.config import VoiceEncoderConfig
from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale.models.layers.mel_config import FLOW_MEL
from nightingale_lab.train.__main__ import main as train
from nightingale_lab.train.clip_codec import HOP, decode, encode
from nightingale_lab.train.corpus import LIMIT_HZ
from nightingale_lab.train.human_clips import read_clips, write_clips
from nightingale_lab.train.human_corpus import human_corpus, stretch
from nightingale_lab.train.mel_speaker import MelSpeakerEncoder, bands_below
from nightingale_lab.train.seeding import seeded
from nightingale_lab.train.vocoder_losses import LowPass
from nightingale_lab.train.voice_encoder import LayerOutputs, vary


def speech(seconds: float, seed: int = 0) -> np.ndarray:
    """Return noise with the spectrum and the pauses of speech, at 16 kHz."""
    rng = np.random.default_rng(seed)
    white = rng.normal(size=int(seconds * 16_000))
    spectrum = np.fft.rfft(white) / (1 + np.arange(len(white) // 2 + 1) / len(white) * 60)
    spectrum[int(0.9 * len(spectrum)) :] = 0
    loud = 0.02 + np.sin(np.arange(len(white)) / 3000) ** 2
    return (0.05 * np.fft.irfft(spectrum, len(white)) * loud).astype(np.float32)


def test_the_codec_keeps_the_signal_and_stores_small_numbers() -> None:
    samples = speech(2.0)
    coded = encode(samples)
    back = decode(coded)
    assert len(back) == len(samples)
    error = back - samples
    assert 10 * np.log10(np.square(samples).sum() / np.square(error).sum()) > 15
    assert np.abs(coded.codes).mean() < 4


def test_silence_survives_the_codec() -> None:
    assert np.abs(decode(encode(np.zeros(HOP * 5, np.float32)))).max() < 1e-5


def test_clips_survive_their_file(tmp_path: Path) -> None:
    clips = [speech(0.5, 1), speech(0.7, 2)]
    write_clips(tmp_path / "clips.npz", clips)
    back = read_clips(tmp_path / "clips.npz")
    assert [len(clip) for clip in back] == [len(clip) for clip in clips]
    assert np.corrcoef(back[1], clips[1])[0, 1] > 0.98


def test_a_faster_copy_has_a_higher_pitch_and_is_held_out_with_its_clip() -> None:
    tone = (0.3 * np.sin(2 * np.pi * 200 * np.arange(16_000) / 16_000)).astype(np.float32)
    with seeded(0):
        teacher = VoiceEncoder(VoiceEncoderConfig(width=12, layers=1))
    corpus = human_corpus([tone, tone], teacher, device=torch.device("cpu"), rates=(1.0, 1.25))
    assert corpus.band_limited.all()
    assert np.linalg.norm(corpus.speaker.astype(np.float32), axis=1) == pytest.approx(1.0, abs=1e-2)
    assert corpus.line[0] == corpus.line[2]
    start, end = corpus.bank.offsets[2:4]
    fast = corpus.bank.audio[start:end].astype(np.float32)
    peak_hz = np.abs(np.fft.rfft(fast)).argmax() * 24_000 / len(fast)
    assert peak_hz == pytest.approx(250, abs=3)
    assert (corpus.bank.f0_hz < 0).all()


def test_stretching_keeps_the_level() -> None:
    samples = torch.from_numpy(speech(1.0))
    assert float(stretch(samples, 24_000).std()) == pytest.approx(float(samples.std()), rel=1e-3)


def test_the_low_pass_changes_chosen_rows_above_the_limit_only() -> None:
    t = torch.arange(12_000) / 24_000
    low, high = (torch.sin(2 * torch.pi * hz * t) for hz in (3000.0, 9000.0))
    rows = torch.tensor([[True], [False]])
    out = LowPass(LIMIT_HZ)((low + high).repeat(2, 1), rows)
    inside = slice(1000, 11_000)
    assert torch.allclose(out[0, inside], low[inside], atol=2e-3)
    assert torch.equal(out[1], low + high)


def test_bands_above_the_limit_do_not_reach_the_speaker_encoder() -> None:
    counted = bands_below()
    assert 0 < FLOW_MEL.bands - int(counted.sum()) < 8
    with seeded(0):
        net = MelSpeakerEncoder(VoiceEncoder(VoiceEncoderConfig(width=12, embedding=8)), width=16)
    mel, valid = torch.randn(2, FLOW_MEL.bands, 40), torch.ones(2, 40)
    changed = torch.where(counted[None, :, None] == 0, torch.full_like(mel, -2.2), mel)
    assert torch.equal(net.log_power(mel, valid), net.log_power(changed, valid))


def test_the_speaker_encoder_learns_the_mel_power_of_recordings_and_leaves_its_teacher_as_it_is() -> None:
    with seeded(0):
        teacher = VoiceEncoder(VoiceEncoderConfig(width=12, embedding=8))
        net = MelSpeakerEncoder(teacher, width=16)
        before = {name: value.clone() for name, value in teacher.state_dict().items()}
        mel, valid = torch.randn(2, FLOW_MEL.bands, 120), torch.ones(2, 120)
        power = torch.rand(2, 240, 40) + 1e-3
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = net.loss(mel, valid, power)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


def test_windows_of_the_speaker_encoder_lie_within_the_frames_that_count() -> None:
    with seeded(0):
        net = MelSpeakerEncoder(VoiceEncoder(VoiceEncoderConfig(width=12, embedding=8)), width=16)
        place = torch.arange(200)[None]
        valid = (place >= 90) & (place < torch.tensor([[190], [175]]))
        numbers = torch.arange(400.0)[None, :, None].expand(2, -1, 40)
        crops = net.crops(numbers, valid)
    assert crops.shape == (4, 160, 40)
    assert float(crops.min()) >= 180
    assert float(crops[:2].max()) < 380
    assert float(crops[2:].max()) < 350


def test_layer_by_layer_the_voice_encoder_computes_the_same_and_shares_its_weights() -> None:
    with seeded(0):
        net = VoiceEncoder(VoiceEncoderConfig(width=12, embedding=8))
    mel = torch.rand(3, 20, 40)
    states, vectors = LayerOutputs(net)(mel)
    assert len(states) == net.config.layers
    assert torch.allclose(vectors, net(mel), atol=1e-6)
    gradients = torch.autograd.grad(vectors.sum(), [net.lstm.weight_ih_l0, net.lstm.weight_hh_l2])
    assert all(bool(gradient.any()) for gradient in gradients)


def test_layers_that_get_the_teachers_states_do_not_depend_on_each_other() -> None:
    with seeded(0):
        net, teacher = (VoiceEncoder(VoiceEncoderConfig(width=12, embedding=8)) for _ in range(2))
    mel = torch.rand(3, 20, 40)
    wanted, _ = LayerOutputs(teacher)(mel)
    states, vectors = LayerOutputs(net)(mel, wanted)
    below = net.lstm.weight_ih_l0
    for later in (*states[1:], vectors):
        assert torch.autograd.grad(later.sum(), below, allow_unused=True, retain_graph=True) == (None,)
    assert torch.autograd.grad(states[0].sum(), below)[0].any()


def test_half_of_the_mels_are_filtered_and_stay_powers() -> None:
    mel = torch.rand(200, 12, 40) + 0.1
    with seeded(0):
        varied = vary(mel)
    unchanged = (varied == mel).flatten(1).all(1)
    assert 60 < int(unchanged.sum()) < 140
    assert bool((varied > 0).all())
    assert varied.shape == mel.shape


def test_the_voice_encoder_is_trained_on_clips_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_everything_tiny(monkeypatch)
    save_file(VoiceEncoder(SMALL.voice_encoder).state_dict(), tmp_path / "resemblyzer.safetensors")
    write_clips(tmp_path / "clips.npz", [speech(3.0, seed) for seed in range(3)])
    given = ["--out", str(tmp_path), "--assets", str(tmp_path), "--clips", str(tmp_path / "clips.npz")]
    train(["voice-encoder", *given, "--device", "cpu", "--batch", "4", "--budget-s", "1"])
    trained = load_file(tmp_path / "voice_encoder.safetensors")
    assert trained.keys() == VoiceEncoder(SMALL.voice_encoder).state_dict().keys()
    assert "clips 15" in capsys.readouterr().err
    assert not (tmp_path / "voices.safetensors").exists()
