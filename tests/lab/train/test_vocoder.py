"""The vocoder's training stage, at a size that a test can afford."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from nightingale.errors import CheckpointError, ConfigError
from nightingale.models.frame_vocoder.config import FrameVocoderConfig
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale.models.layers.mel import FlowMel, spectrum
from nightingale.models.layers.mel_config import FLOW_MEL
from nightingale_lab.reference import load, networks_of
from nightingale_lab.train.bank import HOP, AudioBank, BankSampler
from nightingale_lab.train.loop import Schedule, read_log
from nightingale_lab.train.vocoder import copy_synthesis, load_vocoder, train_vocoder
from nightingale_lab.train.vocoder_losses import (
    LOG_FLOOR,
    MELS,
    Analysis,
    f0_loss,
    mel_distances,
    pitch_error,
    voicing_error,
)
from nightingale_lab.train.vocoder_step import MEL_MARGIN, VocoderPlan, VocoderStage

CPU = torch.device("cpu")
FRESH_LIMIT = 1.0
"""Mel distance."""
TINY = VocoderPlan(
    network=FrameVocoderConfig(width=16, hidden=24, blocks=2, pitch_width=16),
    batch=2,
    window_frames=5,
    before_frames=3,
    period_channels=(4, 8, 8),
    spectral_channels=8,
    lr=3e-3,
    warmup_steps=5,
)


def tone(frames: int, f0_hz: float) -> tuple[np.ndarray, np.ndarray]:
    """A harmonic tone with an unvoiced, noisy first quarter."""
    t = np.arange(frames * HOP) / 24_000
    wave = sum(np.sin(2 * np.pi * f0_hz * k * t) / k for k in range(1, 9)) * 3000
    voiced = np.arange(frames) >= frames // 4
    noise = np.random.default_rng(0).normal(size=frames * HOP) * 300
    samples = np.where(np.repeat(voiced, HOP), wave, 0) + noise
    return samples.astype(np.int16), np.where(voiced, f0_hz, 0.0)


@pytest.fixture(scope="module")
def bank() -> AudioBank:
    return AudioBank.join([tone(40, 120.0), tone(31, 210.0)])


def run(
    bank: AudioBank, out: Path, *, max_steps: int, plan: VocoderPlan = TINY, **options: object
) -> FrameVocoder:
    settings: dict[str, object] = {"resume": False, "plan_steps": 40, "log_every_s": 0.0, "save_every_s": 1e9}
    settings |= options
    return train_vocoder(
        bank, out, budget_s=1e9, seed=3, device=CPU, eager=True, plan=plan, max_steps=max_steps, **settings
    )  # type: ignore[arg-type]


def test_a_bank_is_saved_and_loaded(bank: AudioBank, tmp_path: Path) -> None:
    bank.save(tmp_path)
    again = AudioBank.load(tmp_path)
    assert again.clips == 2
    assert np.array_equal(again.audio, bank.audio)
    assert again.seconds == pytest.approx(71 / 50)


def test_a_bank_refuses_offsets_that_disagree(bank: AudioBank) -> None:
    with pytest.raises(ConfigError, match="480 samples per frame"):
        replace(bank, offsets=bank.offsets + np.array([0, 1, 1]))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="frame_offsets"):
        AudioBank.load(tmp_path)


def test_every_window_of_every_clip_is_cut_where_it_belongs(bank: AudioBank) -> None:
    sampler = BankSampler(bank, CPU, window_frames=6, before=4, after=3, margin_samples=MEL_MARGIN)
    assert sampler.total_windows == (40 - 5) + (31 - 5)
    crops = sampler.crops(torch.arange(sampler.total_windows))
    row = 0
    for clip, frames in enumerate((40, 31)):
        start = int(bank.offsets[clip])
        for window in range(frames - 5):
            want = bank.audio[start + window * HOP : start + (window + 6) * HOP] / 32768.0
            assert np.allclose(crops.audio[row].numpy(), want)
            first_frame = int(crops.frame_index[row, 0] + crops.start_frame[row, 0])
            assert first_frame == bank.frame_offsets[clip] + window
            assert int(crops.frame_index[row, -1]) < bank.frame_offsets[clip + 1]
            row += 1
    assert int(crops.start_frame[0, 0]) == 0  # a clip's start has no history
    assert int(crops.start_frame[20, 0]) == 4
    assert int(crops.start_frame[34, 0]) == 7  # its end has no future


def test_the_mel_of_a_crop_is_the_crop_of_the_mel(bank: AudioBank) -> None:
    stage = VocoderStage(bank, TINY, device=CPU, seed=0)
    crops = stage.sampler.crops(torch.tensor([0, 1, 20, 35, 36, 62]))  # both clips, their ends and middles
    got = stage.mel_of(crops)
    clips = [bank.audio[a:b] / 32768.0 for a, b in zip(bank.offsets[:-1], bank.offsets[1:], strict=True)]
    whole = torch.cat([FlowMel()(torch.from_numpy(clip).float()[None])[0] for clip in clips], dim=1)
    want = whole[:, crops.frame_index].transpose(0, 1)
    assert (got - want).abs().max() < 1e-3
    assert torch.equal(crops.f0_hz, torch.from_numpy(bank.f0_hz).float()[crops.frame_index])


def test_the_flows_mels_replace_the_recorded_ones_in_some_rows(bank: AudioBank) -> None:
    mels = np.random.default_rng(1).normal(size=(71, 80)).astype(np.float16)
    stage = VocoderStage(bank, TINY, device=CPU, seed=0, mels=mels)
    crops = stage.sampler.crops(torch.tensor([7, 50]))
    recorded = stage.mel_of(crops)
    rendered = torch.from_numpy(mels).float()[crops.frame_index].transpose(1, 2)
    stage.flow_draw.copy_(torch.tensor([0.0, 0.9]))
    assert torch.equal(stage.mel_of(crops), torch.stack([rendered[0], recorded[1]]))
    with pytest.raises(ConfigError, match=r"\(71, 80\)"):
        VocoderStage(bank, TINY, device=CPU, seed=0, mels=mels[:-1])


class HostQuestions(TorchDispatchMode):
    """Notes every operation that makes the host wait for the device: none may occur in a captured step."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.layouts: set[bool] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if any(
            word in name for word in ("_local_scalar_dense", "nonzero", "unique", "masked_select", "equal")
        ):
            self.asked.append(name)
        if name == "aten.convolution_backward.default" and args[0].ndim == 4:
            self.layouts |= {t.is_contiguous(memory_format=torch.channels_last) for t in args[:3]}
        return func(*args, **(kwargs or {}))


def test_a_step_never_asks_the_host_and_keeps_channels_last(bank: AudioBank) -> None:
    stage = VocoderStage(bank, TINY, device=CPU, seed=0)
    stage.sample()
    stage.mel_step()
    with HostQuestions() as seen:
        stage.gan_step()
    assert seen.asked == []
    assert seen.layouts == {True}


def test_spectra_by_matrix_products_are_those_of_the_fourier_transform() -> None:
    audio = torch.randn(2, 4096, generator=torch.Generator().manual_seed(0)) * 0.1
    for config, found in zip(MELS, Analysis().spectra(audio), strict=True):
        frames = audio.unfold(1, config.fft_samples, config.hop_samples)
        wanted = torch.fft.rfft(frames * torch.hann_window(config.fft_samples))
        torch.testing.assert_close(torch.view_as_complex(found.contiguous()), wanted, rtol=1e-4, atol=1e-4)


def test_the_mel_of_recorded_audio_is_the_flows(bank: AudioBank) -> None:
    stage = VocoderStage(bank, TINY, device=CPU, seed=0)
    stage.sample()
    crops = stage.sampler.crops(stage.pick)
    spectra = spectrum(crops.wide_audio, FlowMel().window, FLOW_MEL.hop_samples)
    wanted = torch.log((FlowMel().filters @ spectra.abs()).clamp(min=LOG_FLOOR))
    torch.testing.assert_close(stage.mel_of(crops), wanted, rtol=1e-3, atol=2e-3)


def test_rows_with_the_flows_mels_weigh_less(bank: AudioBank) -> None:
    mels = np.zeros((71, 80), dtype=np.float16)
    stage = VocoderStage(bank, TINY, device=CPU, seed=0, mels=mels)
    stage.flow_draw.copy_(torch.tensor([0.9, 0.0]))
    real, fake = [torch.zeros(2, 3, 4)], [torch.stack([torch.full((3, 4), 1.0), torch.full((3, 4), 2.0)])]
    loss, recorded, rendered = stage._mel_loss(real, fake)
    assert (recorded, rendered) == (1.0, 2.0)
    assert loss == (TINY.mel_weight * 1.0 + TINY.flow_mel_weight * 2.0) / 2


def test_a_fresh_network_starts_at_the_level_of_speech(bank: AudioBank) -> None:
    stage = VocoderStage(bank, replace(TINY, batch=8), device=CPU, seed=0)

    def mel_distance() -> float:
        stage.generator.manual_seed(0)
        stage.sample()
        with torch.no_grad():
            real, fake, _, _ = stage._rendered()
        mels = (stage.analysis.log_mels(stage.analysis.spectra(audio)) for audio in (real, fake))
        return float(mel_distances(*mels).mean())

    assert mel_distance() > FRESH_LIMIT
    stage.set_start_levels()
    assert mel_distance() < FRESH_LIMIT
    average = stage.ema.named(stage.net)["head.bias"]
    assert torch.equal(average, stage.net.head.bias)


def test_weights_of_another_vocoder_are_refused(tmp_path: Path) -> None:
    save_file({"conv_pre.weight": torch.zeros(2)}, tmp_path / "vocoder.safetensors")
    with pytest.raises(CheckpointError, match="frame vocoder"):
        load_vocoder(tmp_path / "vocoder.safetensors", CPU)


def test_wrens_vocoder_copies_a_recording(bank: AudioBank) -> None:
    net = networks_of(load()).vocoder
    assert isinstance(net, FrameVocoder)
    samples = torch.from_numpy(bank.audio[: 40 * HOP] / 32768.0).float()[None]
    rendered = copy_synthesis(net, samples)
    analysis = Analysis()
    mels = (analysis.log_mels(analysis.spectra(audio)) for audio in (samples, rendered))
    assert rendered.shape == samples.shape
    assert mel_distances(*mels) < 0.5


def test_f0_loss_wants_unvoiced_frames_under_the_threshold() -> None:
    zero = torch.zeros(1, 1)
    assert f0_loss(zero, zero) == 0
    assert f0_loss(torch.tensor([[15.0]]), zero) > f0_loss(torch.tensor([[9.0]]), zero) > 0
    voiced = torch.tensor([[200.0]])
    assert f0_loss(voiced, voiced) == 0
    assert f0_loss(torch.tensor([[5.0]]), voiced) > f0_loss(torch.tensor([[150.0]]), voiced)


def test_the_predictor_learns_pitch_and_voicing(bank: AudioBank) -> None:
    stage = VocoderStage(bank, TINY, device=CPU, seed=0)
    crops = stage.sampler.crops(torch.arange(0, stage.sampler.total_windows, 6))
    mel = stage.mel_of(crops)
    schedule = Schedule(peak=1e-2, warmup_steps=5)
    for step in range(120):
        stage.opt_f0.lr.fill_(schedule.at(step, step / 120))
        stage.opt_f0.step(f0_loss(stage.net.pitch_hz(mel), crops.f0_hz))
    predicted = stage.net.pitch_hz(mel).detach()
    assert voicing_error(predicted, crops.f0_hz) < 0.1
    assert pitch_error(predicted, crops.f0_hz) < 0.1


def test_losses_fall_first_without_and_then_with_critics(bank: AudioBank, tmp_path: Path) -> None:
    net = run(bank, tmp_path, max_steps=24, plan=replace(TINY, mel_only_share=0.5))
    records = read_log(tmp_path / "log.jsonl")
    assert [r["step"] for r in records] == list(range(1, 25))
    mel = [r["mel"] for r in records]
    assert np.mean(mel[-8:]) < 0.75 * np.mean(mel[:4])
    assert all(r["d"] == 0 for r in records[:20])
    assert all(r["d"] > 0 and r["g_adv"] > 0 and r["g_feat"] > 0 for r in records[20:])
    assert records[-1]["d"] < records[20]["d"]
    exported = load_file(tmp_path / "vocoder.safetensors")
    fresh = FrameVocoder(TINY.network)
    fresh.load_state_dict(exported)
    samples = torch.from_numpy(bank.audio[: 20 * HOP] / 32768.0).float()[None]
    assert torch.equal(copy_synthesis(fresh, samples), copy_synthesis(net, samples))


def test_a_run_in_two_pieces_equals_the_run_in_one(bank: AudioBank, tmp_path: Path) -> None:
    plan = replace(TINY, mel_only_share=0.1)  # discriminators from step 4 of 40, so both pieces hold them
    whole = run(bank, tmp_path / "whole", max_steps=7, plan=plan)
    run(bank, tmp_path / "parts", max_steps=5, plan=plan)
    parts = run(bank, tmp_path / "parts", max_steps=2, plan=plan, resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, parts.state_dict()[name]), name
    states = [torch.load(tmp_path / side / "state.pt", weights_only=True) for side in ("whole", "parts")]
    for name, value in states[0]["discriminators"].items():
        assert torch.equal(value, states[1]["discriminators"][name]), name
    assert states[1]["done"]["step"] == 7


def test_small_files_are_enough_to_go_on_elsewhere(bank: AudioBank, tmp_path: Path) -> None:
    plan = replace(TINY, mel_only_share=0.05)
    here, there = tmp_path / "here", tmp_path / "there"
    run(bank, here, max_steps=4, plan=plan, state_dir=tmp_path / "large")
    assert sorted(p.name for p in here.iterdir()) == [
        "discriminators.safetensors",
        "log.jsonl",
        "vocoder.safetensors",
    ]
    run(bank, there, max_steps=1, plan=plan, resume=True, resume_from=here)
    record = read_log(there / "log.jsonl")[-1]
    assert record["step"] == 5
    state = torch.load(there / "state.pt", weights_only=True)["done"]
    assert (state["fresh_step"], state["gan_step"]) == (4, 3)
    # Without its discriminators, a generator begins a new plan.
    (here / "discriminators.safetensors").unlink()
    run(bank, tmp_path / "anew", max_steps=1, plan=plan, resume=True, resume_from=here)
    assert read_log(tmp_path / "anew" / "log.jsonl")[-1]["step"] == 1


def test_a_bank_of_short_clips_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="10 frames at most"):
        run(AudioBank.join([tone(10, 100.0)]), tmp_path, max_steps=1)
