"""The Chatterbox interface: signatures, arguments by name and by position, and return values."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from synthetic_clip import voice_like

from nightingale import TTS, ConfigError, UnsupportedLanguage, Voice, VoiceNotFound, compat
from nightingale.compat import ChatterboxMultilingualTTS, ChatterboxTTS, ChatterboxTurboTTS, ChatterboxVC

CLASSES = (ChatterboxTTS, ChatterboxMultilingualTTS, ChatterboxTurboTTS)


@pytest.fixture
def other_voice(noise_model: Any) -> Voice:
    voice = noise_model.default_voice
    return Voice.checked(
        name="other",
        family=voice.family,
        speaker=-voice.speaker,
        prompt_ids=voice.prompt_ids,
        flow_prompt_ids=voice.flow_prompt_ids,
        flow_prompt_mel=-voice.flow_prompt_mel,
        flow_speaker=-voice.flow_speaker,
    )


@pytest.fixture
def clip(other_voice: Voice, tmp_path: Path) -> Path:
    """Return a voice file, which is accepted wherever a clip is."""
    other_voice.save(tmp_path / "other.safetensors")
    return tmp_path / "other.safetensors"


def generate_seeded(model: Any, *args: Any, **options: Any) -> torch.Tensor:
    torch.manual_seed(3)
    return model.generate(*args, **options)


# As in upstream's HEAD.
SIGNATURES = {
    ChatterboxTTS: "text repetition_penalty=1.2 min_p=0.05 top_p=1.0 audio_prompt_path=None exaggeration=0.5 "
    "cfg_weight=0.5 temperature=0.8",
    ChatterboxMultilingualTTS: "text language_id audio_prompt_path=None exaggeration=0.5 cfg_weight=0.5 "
    "temperature=0.8 repetition_penalty=1.2 min_p=0.05 top_p=1.0",
    ChatterboxTurboTTS: "text repetition_penalty=1.2 min_p=0.0 top_p=0.95 audio_prompt_path=None "
    "exaggeration=0.0 cfg_weight=0.0 temperature=0.8 top_k=1000 norm_loudness=True",
}


@pytest.mark.parametrize("kind", CLASSES)
def test_generate_has_upstreams_parameters_in_upstreams_order(kind: Any) -> None:
    _, *parameters = inspect.signature(kind.generate).parameters.values()
    spelled = [
        p.name if p.default is inspect.Parameter.empty else f"{p.name}={p.default}" for p in parameters
    ]
    assert " ".join(spelled) == SIGNATURES[kind]


@pytest.mark.parametrize(
    ("kind", "args"),
    [(ChatterboxTTS, ()), (ChatterboxMultilingualTTS, ("fr",)), (ChatterboxTurboTTS, ())],
)
def test_generate_returns_the_samples_of_say_as_a_row(kind: Any, args: tuple[str, ...], brief: TTS) -> None:
    wav = generate_seeded(kind(brief), "Hello there.", *args)
    assert wav.shape[0] == 1
    assert wav.dtype == torch.float32
    assert kind(brief).sr == 24_000
    controls = {"top_p": 0.95, "top_k": 1000} if kind is ChatterboxTurboTTS else {}
    torch.manual_seed(3)
    seed = int(torch.randint(2**32, (), dtype=torch.int64))
    said = brief.say("Hello there.", language="fr" if args else None, seed=seed, **controls)
    assert np.array_equal(wav[0].numpy(), said.samples)


def test_torch_manual_seed_makes_a_call_reproducible(brief: TTS) -> None:
    model = ChatterboxTTS(brief)
    one = generate_seeded(model, "Hello")
    assert not torch.equal(one, model.generate("Hello"))
    assert torch.equal(one, generate_seeded(model, "Hello"))


@pytest.mark.parametrize("kind", CLASSES)
def test_every_control_reaches_the_engine(kind: Any, brief: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    plain = brief.say("Hello", seed=1)
    monkeypatch.setattr(brief, "say", lambda text, **options: asked.update(options) or plain)
    controls = {"repetition_penalty": 1.3, "top_p": 0.9, "temperature": 0.7}
    if kind is ChatterboxTurboTTS:
        controls |= {"top_k": 50}
    else:
        controls |= {"min_p": 0.1, "exaggeration": 0.6, "cfg_weight": 0.3}
    positional = ["fr"] if kind is ChatterboxMultilingualTTS else []
    kind(brief).generate("Hello", *positional, **controls)
    assert {name: asked[name] for name in controls} == controls
    assert set(asked) == {*controls, "voice", "language", "seed"}


def test_a_control_out_of_range_is_rejected(brief: TTS) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        ChatterboxTTS(brief).generate("Hello", temperature=-1)


def test_a_voice_given_to_a_call_applies_to_that_call_only(brief: TTS, clip: Path) -> None:
    model = ChatterboxTTS(brief)
    own = generate_seeded(model, "Hello")
    others = generate_seeded(model, "Hello", audio_prompt_path=str(clip))
    assert not torch.equal(own, others)
    assert torch.equal(generate_seeded(model, "Hello"), own)
    with pytest.raises(VoiceNotFound):
        model.generate("Hello", audio_prompt_path="missing.wav")


def test_a_prepared_voice_is_used_by_calls_without_one(brief: TTS, clip: Path) -> None:
    for model in (ChatterboxTTS(brief), ChatterboxTurboTTS(brief)):
        others = generate_seeded(model, "Hello", audio_prompt_path=clip)
        assert model.conds is None
        model.prepare_conditionals(clip, exaggeration=0.7)
        assert model.conds is not None
        assert torch.equal(generate_seeded(model, "Hello"), others)


def test_voices_do_not_race(brief: TTS, clip: Path) -> None:
    """Two threads use one model with two voices; each call gets its own voice."""
    model = ChatterboxTTS(brief)
    expected = {}
    for seed in (1, 2):
        for path in (None, clip):
            voice = brief.voice(path) if path else None
            expected[seed, path] = brief.say("Hello", voice=voice, seed=seed).samples
    wrong: list[object] = []

    def caller(seed: int, path: Path | None) -> None:
        for _ in range(3):
            wav = model._say("Hello", path)
            if not any(np.array_equal(wav[0].numpy(), expected[s, path]) for s in (1, 2)):
                wrong.append((seed, path))

    numbers = iter([1, 2] * 6)
    lock = threading.Lock()

    def next_seed(*_: Any, **__: Any) -> torch.Tensor:
        with lock:
            return torch.tensor(next(numbers))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randint", next_seed)
        threads = [threading.Thread(target=caller, args=args) for args in ((1, None), (2, clip))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize(
    ("load", "asked"),
    [
        (lambda: ChatterboxTTS.from_pretrained(device="cpu"), ("english", {})),
        (lambda: ChatterboxTTS.from_pretrained("cpu"), ("english", {})),
        (lambda: ChatterboxTTS.from_local("x", "cpu"), (Path("x"), {"kind": "english"})),
        (lambda: ChatterboxMultilingualTTS.from_pretrained(torch.device("cpu")), ("multilingual", {})),
        (
            lambda: ChatterboxMultilingualTTS.from_pretrained("cpu", t3_model="v3"),
            ("multilingual", {"t3": "v3"}),
        ),
        (
            lambda: ChatterboxMultilingualTTS.from_local("x", "cpu", "t3_mtl23ls_v2.safetensors"),
            (Path("x"), {"kind": "multilingual", "t3": "v2"}),
        ),
        (
            lambda: ChatterboxMultilingualTTS.from_local("x", "cpu", "mine.safetensors"),
            (Path("x"), {"kind": "multilingual", "t3": "mine.safetensors"}),
        ),
        (lambda: ChatterboxTurboTTS.from_pretrained(device="cpu"), ("turbo", {})),
        (lambda: ChatterboxTurboTTS.from_pretrained("cpu", nano=True), ("nano", {})),
        (lambda: ChatterboxTurboTTS.from_local(Path("x"), "cpu"), (Path("x"), {"kind": "turbo"})),
    ],
)
def test_upstreams_model_names_are_mapped(
    load: Any, asked: tuple[Any, dict[str, str]], brief: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def open_tts(model: Any, **options: Any) -> TTS:
        assert options.pop("device") == "cpu"
        assert options.pop("profile") == "exact"
        calls.append((model, options))
        return brief

    monkeypatch.setattr(compat, "TTS", open_tts)
    assert load().device == "cpu"
    assert calls == [asked]


def test_mps_without_metal_falls_back_to_the_cpu(brief: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(compat, "TTS", lambda model, *, device, profile: brief)
    assert ChatterboxTTS.from_pretrained("mps").device == "cpu"


def test_the_supported_languages_are_returned_as_a_copy(tts_with: Any) -> None:
    languages = ChatterboxMultilingualTTS.get_supported_languages()
    assert len(languages) == 23
    assert languages["sw"] == "Swahili"
    languages.clear()
    assert len(ChatterboxMultilingualTTS.get_supported_languages()) == 23


def test_an_unsupported_language_is_rejected(tts_with: Any) -> None:
    from dataclasses import replace

    from nightingale.text.languages import check_language

    class Strict:
        vocab_size = 256

        def encode(self, text: str, language: str | None = None) -> list[int]:
            if language:
                check_language(language)
            return list(text.encode())

    tts = tts_with(frontend=replace(tts_with()._model.frontend, tokenizer=Strict()))
    with pytest.raises(UnsupportedLanguage):
        ChatterboxMultilingualTTS(tts).generate("Hello", "xx")


def test_turbo_logs_what_it_ignores(brief: TTS, caplog: pytest.LogCaptureFixture) -> None:
    model = ChatterboxTurboTTS(brief)
    plain = generate_seeded(model, "Hello")
    assert not caplog.records
    assert torch.equal(generate_seeded(model, "Hello", cfg_weight=0.5, exaggeration=1.0, min_p=0.5), plain)
    assert "ignored" in caplog.text
    with pytest.raises(ConfigError, match="norm_loudness"):
        model.generate("Hello", norm_loudness=False)


def test_conversion_has_upstreams_interface(brief: TTS, clip: Path, tmp_path: Path) -> None:
    """The names and order of `chatterbox.vc.ChatterboxVC`."""
    spelled = {
        name: list(inspect.signature(getattr(ChatterboxVC, name)).parameters)
        for name in ("__init__", "from_pretrained", "from_local", "set_target_voice", "generate")
    }
    assert spelled == {
        "__init__": ["self", "s3gen", "device", "ref_dict"],
        "from_pretrained": ["device"],
        "from_local": ["ckpt_dir", "device"],
        "set_target_voice": ["self", "wav_fpath"],
        "generate": ["self", "audio", "target_voice_path"],
    }
    recording = tmp_path / "in.wav"
    soundfile.write(recording, voice_like(1.0, 24_000), 24_000)
    model = ChatterboxVC(brief.converter)
    own = generate_seeded(model, recording)
    assert own.shape == (1, 24_000)
    assert own.dtype == torch.float32
    assert model.sr == 24_000
    others = generate_seeded(model, str(recording), target_voice_path=str(clip))
    assert not torch.equal(own, others)
    assert torch.equal(generate_seeded(model, recording), own), "a target applies to its own call"
    model.set_target_voice(clip)
    assert torch.equal(generate_seeded(model, recording), others)


def test_conversion_loads_the_english_model_without_t3(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        compat.VoiceConverter,
        "load",
        lambda model, **options: asked.append((model, options)) or SimpleNamespace(sample_rate_hz=24_000),
    )
    ChatterboxVC.from_pretrained("cpu")
    ChatterboxVC.from_local("folder", "mps")
    assert asked == [
        ("english", {"device": "cpu", "profile": "exact"}),
        (Path("folder"), {"device": "cpu", "profile": "exact", "kind": "english"}),
    ]
