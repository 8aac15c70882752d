"""The MLX backend behind the public interface: a worker thread, streams, batches and faults."""

from __future__ import annotations

import json
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

mx = pytest.importorskip("mlx.core")

from safetensors.numpy import save_file  # noqa: E402
from synthetic_clip import voice_like  # noqa: E402
from tiny_torch import TINY_PRESET, load_tiny  # noqa: E402

from nightingale.backends.mlx import arrays  # noqa: E402
from nightingale.backends.mlx.host_blas import load_fast_blas  # noqa: E402
from nightingale.backends.profiles import PROFILES  # noqa: E402
from nightingale.engine.load import Model  # noqa: E402
from nightingale.engine.tts import TTS  # noqa: E402
from nightingale.errors import NightingaleError  # noqa: E402
from nightingale.models.chatterbox.presets import PRESETS  # noqa: E402
from nightingale_lab.bench import mlx_precisions  # noqa: E402
from nightingale_lab.random_models import random_networks, random_voice, save_weights  # noqa: E402

TEXTS = ("One sentence.", "Another, longer sentence.", "A third.")


@pytest.fixture(scope="module")
def model() -> Model:
    return load_tiny(replace(TINY_PRESET, flow=replace(TINY_PRESET.flow, block_causal=True)))


@pytest.fixture(scope="module")
def tts(model: Model) -> TTS:
    engine = TTS.over(model, PROFILES["balanced"], device="mlx", dtype="float32")
    assert [choice.backend.name for choice in engine.plan.choices] == ["mlx", "mlx"]
    return engine


def test_a_stream_is_the_audio_that_say_returns(tts: TTS) -> None:
    whole = tts.say(TEXTS[1], seed=3).samples
    chunks = [chunk.samples for chunk in tts.stream(TEXTS[1], seed=3)]
    assert len(chunks) > 1
    assert np.abs(np.concatenate(chunks) - whole).max() < 1e-3
    assert np.isfinite(whole).all()


def test_the_same_seed_gives_the_same_bytes(tts: TTS) -> None:
    one, again, other = (tts.say(TEXTS[0], seed=seed).samples for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_a_batch_equals_single_requests(tts: TTS) -> None:
    together = tts.say_many(TEXTS, seed=5)
    for audio, text in zip(together, TEXTS, strict=True):
        alone = tts.say(text, seed=5).samples
        assert audio.samples.shape == alone.shape
        assert np.abs(audio.samples - alone).max() < 1e-3


def test_the_audio_is_that_of_pytorch(model: Model) -> None:
    with (
        TTS.over(model, "exact", device="mlx") as mine,
        TTS.over(model, "exact", device="cpu") as theirs,
    ):
        assert [choice.backend.name for choice in mine.plan.choices] == ["mlx", "mlx"]
        assert [choice.backend.name for choice in theirs.plan.choices] == ["torch", "torch"]
        one, other = (engine.say(TEXTS[0], seed=4).samples for engine in (mine, theirs))
    assert one.shape == other.shape
    assert np.sqrt(np.square(one - other).mean()) < 1e-3


def test_a_request_that_fails_leaves_others_alone(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tts.say(TEXTS[0], seed=1).samples
    from nightingale.backends.mlx.rendering.waveform_stream import CrossfadedWaveform

    def fail(self: CrossfadedWaveform, mel: mx.array, *, final: bool) -> None:
        raise RuntimeError("[METAL] Command buffer execution failed")

    with monkeypatch.context() as patch:
        patch.setattr(CrossfadedWaveform, "push", fail)
        with pytest.raises(NightingaleError):
            tts.say(TEXTS[1], seed=1)
    assert np.array_equal(tts.say(TEXTS[0], seed=1).samples, expected)


def test_two_engines_share_one_models_weights_across_threads(tts: TTS, model: Model) -> None:
    """Each engine has a worker thread of its own; MLX's arrays may cross threads once they are evaluated."""
    expected = tts.say(TEXTS[0], seed=1).samples
    with TTS.over(model, PROFILES["balanced"], device="mlx", dtype="float32") as other:
        assert np.array_equal(other.say(TEXTS[0], seed=1).samples, expected)


def test_a_thread_that_ends_leaves_no_streams_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX would sometimes abort the process at its exit."""
    cleared: list[int] = []
    monkeypatch.setattr(mx, "clear_streams", lambda: cleared.append(threading.get_ident()))
    thread = threading.Thread(target=arrays.OwnThread().enter)
    thread.start()
    thread.join()
    arrays.OwnThread().enter()  # not for the main thread, whose streams are in use until the end
    assert cleared == [thread.ident]


def test_a_voice_is_enrolled_by_another_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path))
    clip = tmp_path / "clip.wav"
    soundfile.write(clip, voice_like(6.0, 24_000), 24_000)
    with TTS("wren", device="mlx") as mine, TTS("wren", device="cpu") as theirs:
        one, other = (engine.learn(clip.read_bytes(), name="x", max_seconds=60) for engine in (mine, theirs))
    np.testing.assert_allclose(one.speaker, other.speaker, atol=1e-4)


@pytest.mark.slow
def test_nano_of_full_size_speaks_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The public interface over a folder as the hub has it, with random weights: quantized, cached, streamed."""
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "nano"
    folder.mkdir()
    save_weights(random_networks(PRESETS["nano"]), folder)
    (folder / "t3.safetensors").rename(folder / "t3_nano_v1.safetensors")
    (folder / "s3gen.safetensors").rename(folder / "s3gen_meanflow.safetensors")
    save_file({}, folder / "ve.safetensors")  # for cloning, which is not part of this
    (folder / "vocab.json").write_text(json.dumps({"H": 0, "i": 1, ".": 2, "<|endoftext|>": 3}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "added_tokens.json").write_text("{}")
    random_voice(PRESETS["nano"]).save(folder / "voice.safetensors")
    for profile, precision in (("balanced", "bfloat16"), ("fast", "int8")):
        with TTS(folder, device="mlx", profile=profile, stream="block") as engine:
            chosen = [(choice.backend.name, choice.precision) for choice in engine.plan.choices]
            assert chosen == [("mlx", precision), ("mlx", "float32")]
            first = next(iter(engine.stream("Hi.", voice=folder / "voice.safetensors", seed=1)))
        assert len(first.samples) > 2400
        assert np.isfinite(first.samples).all()
        assert first.samples.std() > 0
    assert list((tmp_path / "home").rglob("*.safetensors")), "quantized layers are cached"


@pytest.mark.slow
def test_wren_speaks_as_with_pytorch() -> None:
    """The wheel of MLX for Linux has a slow matrix product: this takes a quarter of a minute."""
    spoken = []
    for device in ("mlx", "cpu"):
        with TTS("wren", profile="exact", device=device) as engine:
            spoken.append(engine.say("The quick brown fox jumps over the lazy dog.", seed=5).samples)
    mine, theirs = spoken
    assert mine.shape == theirs.shape
    assert np.sqrt(np.square(mine - theirs).mean()) < 0.01 * theirs.std()


@pytest.mark.slow
def test_wren_takes_at_most_two_and_a_half_times_the_cpu_time_of_pytorch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The benchmark's own line, over three sentences; functions that MLX compiles for new shapes are in it."""
    if load_fast_blas() is None:
        pytest.skip("neither PyTorch nor the system has OpenBLAS, so MLX uses the BLAS of its wheel")
    rows = ["PyTorch float32", "MLX float32"]
    monkeypatch.setattr(sys, "argv", ["", "--sentences", "3", "--recognizers", "", "--only", *rows])
    mlx_precisions.main()
    printed = capsys.readouterr().out
    ratio = re.search(r"MLX float32: CPU time [\d.]+ \(([\d.]+) times", printed)
    assert ratio is not None, printed
    assert float(ratio[1]) <= 2.5, printed
