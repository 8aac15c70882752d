"""Export of training outputs to a model folder: names, sizes, errors, and loading it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_wren import TINY

from nightingale import wren
from nightingale.backends.torch.weights import load_voice_encoders
from nightingale.clocks import CLOCKS
from nightingale.engine.load import Model, default_model, load_model
from nightingale.engine.tts import TTS
from nightingale.errors import CheckpointError, ConfigError, ModelMissing
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.text.frontend import open_frontend
from nightingale.types import Sampling
from nightingale.voices import library
from nightingale.voices.voice import Voice
from nightingale_lab.reference import networks_of
from nightingale_lab.train.export import PARTS, export, replace_networks
from nightingale_lab.train.prepare import train_vocabulary
from nightingale_lab.train.seeding import seeded
from nightingale_lab.train.speakers import mean_speakers, read_built_in_voices

WREN = PRESETS["wren"]


def load_wren(folder: Path) -> Model:
    """Load a folder as wren with the tiny preset."""
    model = load_model(folder, offline=True, options={})
    return replace(model, source=model.source.with_info(replace(model.info, preset=TINY)))


TEXT = "Hello there, this is the first sentence. And here is another one, spoken after it."


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write random outputs of training: every network, a vocabulary, two voices."""
    folder = tmp_path_factory.mktemp("outputs")
    with seeded(1):
        for part in PARTS:
            weights = {name: t.half().contiguous() for name, t in part.build(TINY).state_dict().items()}
            save_file(weights, folder / f"{part.source}.safetensors")
        voices = {name: torch.randn(256) for name in ("bm_george", "af_heart", "af_heart.teacher")}
    save_file(voices, folder / "voices.safetensors")
    words = [a + b + c for a in "bcdfghlmnprst" for b in "aeiou" for c in "bdglmnprst"]
    (folder / "wren_tokenizer.json").write_text(train_vocabulary(words, size=300))
    return folder


@pytest.fixture(scope="module")
def shipped(outputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shipped")
    export(outputs, out, TINY)
    return out


@pytest.fixture
def tts(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> TTS:
    monkeypatch.setitem(PRESETS, "wren", TINY)  # type: ignore[misc]
    # Half a second is enough of a model that never learned to stop.
    monkeypatch.setitem(MODEL_DEFAULTS, "wren", replace(MODEL_DEFAULTS["wren"], max_new_tokens=12))  # type: ignore[misc]
    return TTS(shipped, device="cpu")


def test_the_files_are_those_the_package_looks_for(shipped: Path) -> None:
    assert wren.missing(shipped) == []
    assert sorted(p.name for p in (shipped / "voices").iterdir()) == [
        "george.md",
        "george.safetensors",
        "heart.md",
        "heart.safetensors",
    ]
    names = set(load_file(shipped / "s3gen.safetensors"))
    assert {name.split(".")[0] for name in names} == {"flow", "mel2wav", "tokenizer"}


def test_matrices_are_int8(shipped: Path) -> None:
    weights = load_file(shipped / "s3gen.safetensors")
    assert weights["flow.input_embedding.weight"].dtype == torch.int8
    assert weights["flow.input_embedding.weight.scale"].shape == (6561,)
    assert weights["mel2wav.head.weight"].dtype == torch.int8
    assert weights["mel2wav.head.bias"].dtype == torch.float16


def test_what_is_loaded_is_near_what_was_trained(outputs: Path, shipped: Path) -> None:
    model = load_wren(shipped)
    networks, encoders = networks_of(model), load_voice_encoders(model.source)
    for source, net in (
        ("t3", networks.t3),
        ("flow.refine", networks.flow),
        ("vocoder", networks.vocoder),
        ("tokenizer", encoders.speech_tokenizer),
        ("voice_encoder", encoders.voice_encoder),
    ):
        trained, loaded = load_file(outputs / f"{source}.safetensors"), net.state_dict()
        assert trained.keys() == loaded.keys()
        for name, weight in trained.items():
            error = (loaded[name] - weight.float()).norm() / weight.float().norm().clamp(min=1e-6)
            assert error < 0.01, f"{source} {name}: {error:.4f}"


def test_some_networks_of_a_packed_model_are_replaced(outputs: Path, shipped: Path, tmp_path: Path) -> None:
    changed = {name: 2 * t for name, t in load_file(outputs / "flow.refine.safetensors").items()}
    save_file(changed, tmp_path / "flow.refine.safetensors")
    replace_networks(shipped, [tmp_path / "flow.refine.safetensors"], tmp_path / "new", TINY)
    before, after = (load_file(folder / "s3gen.safetensors") for folder in (shipped, tmp_path / "new"))
    scale = "flow.input_embedding.weight.scale"
    assert torch.equal(after[scale], 2 * before[scale])
    kept = [name for name in before if not name.startswith("flow.")]
    assert all(torch.equal(after[name], before[name]) for name in kept)
    cards = [json.loads((folder / "card.json").read_text()) for folder in (shipped, tmp_path / "new")]
    assert cards[0]["fingerprint"] != cards[1]["fingerprint"]
    replace_networks(shipped, [tmp_path / "flow.refine.safetensors"], tmp_path / "half", TINY, share=0.5)
    half = load_file(tmp_path / "half" / "s3gen.safetensors")
    assert torch.allclose(half[scale].float(), 1.5 * before[scale].float(), rtol=0.01)
    with pytest.raises(ConfigError, match="tokenizer"):
        replace_networks(shipped, [outputs / "tokenizer.safetensors"], tmp_path / "other", TINY)
    assert not (tmp_path / "other").exists()
    save_file({"conv_pre.weight": torch.zeros(2)}, tmp_path / "vocoder.safetensors")
    for share, error in ((1.0, CheckpointError), (0.5, ConfigError)):
        with pytest.raises(error, match="FrameVocoder"):
            replace_networks(
                shipped, [tmp_path / "vocoder.safetensors"], tmp_path / "other", TINY, share=share
            )
    assert not (tmp_path / "other").exists()
    with pytest.raises(ConfigError, match="share"):
        replace_networks(shipped, [tmp_path / "flow.refine.safetensors"], tmp_path / "other", TINY, share=1.5)
    replace_networks(tmp_path / "new", [outputs / "flow.refine.safetensors"], tmp_path / "new", TINY)
    again = load_file(tmp_path / "new" / "s3gen.safetensors")
    assert all(torch.equal(again[name], before[name]) for name in before)


def test_a_tokenizer_that_was_trained_further_on_people_replaces_the_one_before(
    outputs: Path, shipped: Path, tmp_path: Path
) -> None:
    weights = {name: 2 * t for name, t in load_file(outputs / "tokenizer.safetensors").items()}
    save_file(weights, tmp_path / "tokenizer_people.safetensors")
    replace_networks(shipped, [tmp_path / "tokenizer_people.safetensors"], tmp_path / "new", TINY)
    before, after = (load_file(folder / "s3gen.safetensors") for folder in (shipped, tmp_path / "new"))
    changed = {name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"tokenizer"}
    cards = [json.loads((folder / "card.json").read_text()) for folder in (shipped, tmp_path / "new")]
    assert cards[0]["silence_ids"] == cards[1]["silence_ids"]
    assert cards[0]["fingerprint"] != cards[1]["fingerprint"]


def test_the_exported_model_streams(tts: TTS) -> None:
    chunks = list(tts.stream(TEXT, seed=3))
    assert len(chunks) >= 2
    assert all(np.isfinite(chunk.samples).all() and len(chunk.samples) for chunk in chunks)
    assert tts.say(TEXT, seed=3).sha256 == tts.say(TEXT, seed=3).sha256
    assert np.array_equal(tts.say(TEXT, seed=3).samples, np.concatenate([c.samples for c in chunks]))


def test_the_folder_s_voices_are_found_by_name(tts: TTS) -> None:
    assert tts.voice("george").name == "george"
    assert len(tts.say("Hi.", voice="heart", seed=1).samples)


def test_the_first_segment_sounds_the_same_alone(tts: TTS) -> None:
    first, second = TEXT.split(". ")
    closing = MODEL_DEFAULTS["wren"].closing_pause_ms * CLOCKS.sample_rate_hz // 1000
    alone = tts.say(first + ".", seed=3).samples[:-closing]
    both = tts.say(TEXT, seed=3).samples
    assert np.array_equal(both[: len(alone)], alone)
    # A later piece has its own randomness, not the first one's again.
    again = tts.say(second, seed=3).samples
    assert not np.array_equal(both[-len(again) :], again)


def test_the_default_voice_is_heart_and_others_are_found_beside_it(
    tts: TTS, shipped: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "builtin_folder", lambda: shipped / "voices")
    heart, george = (Voice.load(shipped / "voices" / f"{name}.safetensors") for name in ("heart", "george"))
    assert tts.say("Hello.", seed=1).sha256 == tts.say("Hello.", seed=1, voice="heart").sha256
    assert tts.voice("george") == george != heart
    assert len(heart.prompt_ids) == len(heart.flow_prompt_ids) == len(heart.flow_prompt_mel) == 0


def test_controls_wren_does_not_have_are_refused(tts: TTS) -> None:
    for name in ("cfg_weight", "exaggeration"):
        with pytest.raises(ConfigError, match=f"no {name}"):
            tts.say("Hello.", **{name: 0.3})


def test_a_clip_becomes_a_voice_with_a_short_prompt(
    tts: TTS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import soundfile

    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path / "home"))
    clip = tmp_path / "clip.wav"
    time_s = np.arange(4 * 24_000) / 24_000
    soundfile.write(clip, 0.3 * np.sin(2 * np.pi * 180 * time_s) * (1 + np.sin(9 * time_s)) / 2, 24_000)
    voice = tts.voice(clip)
    assert (len(voice.prompt_ids), len(voice.flow_prompt_mel)) == (0, 74)
    assert np.array_equal(voice.speaker, voice.flow_speaker)
    assert len(tts.say("Hello.", voice=voice, seed=1).samples)


def test_capitals_accents_and_spaces_are_encoded(shipped: Path) -> None:
    encode = open_frontend("wren", shipped).encode
    assert encode("Bad BAGEL, bén.") == encode("bad bagel, ben.")
    held = json.loads((shipped / "tokenizer.json").read_text())["model"]["vocab"]
    ids = encode("Bad bagel.")
    assert ids.count(held["[SPACE]"]) == 1
    assert held["[UNK]"] not in ids


def test_a_vocabulary_whose_tags_would_be_lowercased_is_refused(outputs: Path, tmp_path: Path) -> None:
    source = shutil.copytree(outputs, tmp_path / "outputs")
    held = json.loads((source / "wren_tokenizer.json").read_text())
    for tag in held["added_tokens"]:
        tag["normalized"] = True
    (source / "wren_tokenizer.json").write_text(json.dumps(held).replace("[SPACE]", "[space]"))
    with pytest.raises(CheckpointError, match="vocabulary"):
        export(source, tmp_path / "out", TINY)


def test_the_card_describes_the_model(outputs: Path, tmp_path: Path) -> None:
    report = export(outputs, tmp_path, TINY, default_voice="george", sampling=Sampling(temperature=0.5))
    card = json.loads((tmp_path / "card.json").read_text())
    assert (card["name"], card["default_voice"], card["voices"]) == ("wren", "george", ["george", "heart"])
    assert card["bytes"]["t3.safetensors"] == (tmp_path / "t3.safetensors").stat().st_size
    assert report.total_bytes == sum((tmp_path / name).stat().st_size for name in wren.FILES.values())
    model = load_wren(tmp_path)
    assert model.defaults.sampling.temperature == 0.5
    assert model.default_voice is not None
    assert model.default_voice.name == "george"


def test_the_card_lists_the_tokens_of_silence_for_the_guards(
    outputs: Path, shipped: Path, tmp_path: Path
) -> None:
    import soundfile

    alone = json.loads((shipped / "card.json").read_text())["silence_ids"]
    assert alone == sorted(set(alone))
    assert load_wren(shipped).defaults.silence_ids == frozenset(alone) != frozenset()
    # Between words silence has other ids than by itself: a token hears its neighbours.
    time_s = np.arange(24_000) / 24_000
    soundfile.write(tmp_path / "buzz.wav", 0.3 * np.sign(np.sin(2 * np.pi * 150 * time_s)), 24_000)
    export(outputs, tmp_path / "out", TINY, references=[tmp_path / "buzz.wav"])
    both = json.loads((tmp_path / "out" / "card.json").read_text())["silence_ids"]
    assert set(alone) < set(both)
    # A card from before has none, and is read all the same; one with nonsense in it is not.
    card = json.loads((shipped / "card.json").read_text())
    folder = shutil.copytree(shipped, tmp_path / "copy")
    del card["silence_ids"]
    (folder / "card.json").write_text(json.dumps(card))
    assert load_wren(folder).defaults.silence_ids == frozenset()
    (folder / "card.json").write_text(json.dumps({**card, "silence_ids": ["quiet"]}))
    with pytest.raises(CheckpointError, match="silence_ids"):
        load_wren(folder)


def test_what_is_too_large_is_not_written(outputs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too large to ship"):
        export(outputs, tmp_path / "out", TINY, limit_bytes=100_000)
    assert not (tmp_path / "out").exists()


def test_a_voice_that_is_no_longer_built_in_is_deleted(outputs: Path, tmp_path: Path) -> None:
    out, source = tmp_path / "out", shutil.copytree(outputs, tmp_path / "outputs")
    export(source, out, TINY)
    save_file({"af_heart": torch.ones(256)}, source / "voices.safetensors")
    export(source, out, TINY)
    assert {p.stem for p in (out / "voices").iterdir()} == {"heart"}


@pytest.mark.parametrize("name", ["t3.safetensors", "voices.safetensors", "wren_tokenizer.json"])
def test_a_missing_stage_is_named(name: str, outputs: Path, tmp_path: Path) -> None:
    source = shutil.copytree(outputs, tmp_path / "outputs")
    (source / name).unlink()
    with pytest.raises(ConfigError, match=f"no {name}"):
        export(source, tmp_path / "out", TINY)


def test_weights_of_another_size_are_refused(outputs: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="do not fit T3"):
        export(outputs, tmp_path, replace(TINY, t3=WREN.t3))


def test_without_weights_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wren, "folder", lambda: tmp_path)
    with pytest.raises(ModelMissing, match=r"no t3\.safetensors.*training\.md"):
        load_model("wren", offline=True, options={})


@pytest.mark.parametrize(
    "card", ["", "{}", '{"sampling": {"heat": 1}, "default_voice": "a", "fingerprint": "b"}']
)
def test_a_broken_card_is_refused(card: str, shipped: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(shipped, tmp_path / "copy")
    (folder / "card.json").write_text(card)
    with pytest.raises(CheckpointError, match="card"):
        load_model(folder, offline=True, options={})


def test_the_default_model_is_wren_once_it_is_there(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wren, "folder", lambda: shipped)
    assert default_model() == "wren"
    monkeypatch.setattr(wren, "folder", lambda: shipped / "voices")
    assert default_model() == "noise"


def test_a_built_in_voice_is_the_mean_of_its_clips() -> None:
    speaker = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    means = mean_speakers(speaker, torch.tensor([0, 1, 1]), ["af_heart", "am_puck"])
    assert torch.equal(means["am_puck"], torch.tensor([0.0, 1.0]))
    with pytest.raises(ConfigError, match="af_bella"):
        mean_speakers(speaker, torch.tensor([0, 1, 1]), ["af_heart", "am_puck", "af_bella"])


def test_unknown_names_of_built_in_voices_are_refused(tmp_path: Path) -> None:
    save_file({"zz_heart": torch.ones(2)}, tmp_path / "voices.safetensors")
    with pytest.raises(ConfigError, match="zz_heart"):
        read_built_in_voices(tmp_path / "voices.safetensors", "heart")
