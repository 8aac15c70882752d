"""From a folder with the official file names, written here at a thousandth of their size, to speech."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import save_file
from tiny_torch import TINY_PRESET
from torch import Tensor

from nightingale import TTS, CheckpointError, ConfigError, ModelMissing, VoiceConverter, VoiceError
from nightingale.backends.onnx import capabilities
from nightingale.backends.onnx.torch_model import OnnxFormat
from nightingale.backends.profiles import PROFILES, Preference
from nightingale.backends.shared.packed_t3 import open_packed
from nightingale.backends.torch.weights import in_memory, rendering_weights, t3_weights
from nightingale.engine import load as load_module
from nightingale.models.chatterbox.build import new_vocoder
from nightingale.models.chatterbox.encoders.config import VoiceEncoderConfig, XVectorConfig
from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer
from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale.models.chatterbox.encoders.xvector import XVector
from nightingale.models.chatterbox.presets import Preset
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3 import config as t3_config
from nightingale.models.chatterbox.t3.config import Gpt2Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS

ENGLISH = Preset(
    t3=replace(TINY_PRESET.t3, text_vocab=300, prompt_tokens=150, speaker_width=256),
    flow=replace(TINY_PRESET.flow, speaker_width=192, meanflow=False),
    vocoder=TINY_PRESET.vocoder,
    speech_tokenizer=TINY_PRESET.speech_tokenizer,
    voice_encoder=VoiceEncoderConfig(width=16, layers=1, embedding=256),
    xvector=XVectorConfig(
        front_channels=4, stem_channels=8, growth=4, bottleneck=8, depths=(1, 1, 1), embedding=192
    ),
)
TURBO = replace(
    ENGLISH,
    t3=replace(
        t3_config.TURBO, backbone=Gpt2Config(layers=1, width=32, heads=2, positions=1500), text_vocab=300
    ),
    flow=replace(ENGLISH.flow, meanflow=True),
)
Tensors = dict[str, Tensor]


def weights(net: torch.nn.Module) -> Tensors:
    return {name: t.clone() for name, t in net.state_dict().items()}


def weight_normed(tensors: Tensors) -> Tensors:
    """Return the vocoder as the official file stores it: with weight norm on all but the source's convolutions."""
    out: Tensors = {}
    for name, t in tensors.items():
        if name.endswith(".weight") and t.dim() == 3 and not name.startswith("source_downs"):
            stem = name.removesuffix("weight") + "parametrizations.weight.original"
            length = t.flatten(1).norm(dim=1).view(-1, 1, 1)
            out |= {f"{stem}0": length, f"{stem}1": 3 * t}  # only the direction of the second counts
        else:
            out[name] = t
    return out


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    return {prefix + name: t for name, t in tensors.items()}


def official(preset: Preset) -> dict[str, Tensors]:
    """role -> tensors, under the official names."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        assert preset.xvector is not None
        t3 = weights(T3(preset.t3))
        t3["text_head.weight"] = torch.zeros(2, 2)
        t3["tfmr.wte.weight" if preset is TURBO else "tfmr.embed_tokens.weight"] = torch.zeros(8, 2)
        listener = weights(SpeechTokenizer(preset.speech_tokenizer))
        listener |= {"_mel_filters": torch.zeros(1), "window": torch.zeros(1)}
        return {
            "t3": t3,
            "s3gen": {
                **prefixed("flow.", weights(Flow(preset.flow))),
                **prefixed("mel2wav.", weight_normed(weights(new_vocoder(preset.vocoder)))),
                **prefixed("tokenizer.", listener),
                **prefixed("speaker_encoder.", weights(XVector(preset.xvector))),
            },
            "ve": weights(VoiceEncoder(preset.voice_encoder)),
        }


@pytest.fixture(scope="module")
def english() -> dict[str, Tensors]:
    return official(ENGLISH)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "PRESETS", {"english": ENGLISH, "turbo": TURBO})
    short = {name: replace(MODEL_DEFAULTS[name], max_new_tokens=4) for name in ("english", "turbo")}
    monkeypatch.setattr(load_module, "MODEL_DEFAULTS", short)


def write_vocabulary(folder: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?'"
    vocab = {"[STOP]": 0, "[UNK]": 1, "[SPACE]": 2, "[START]": 255}
    vocab |= {letter: number for number, letter in enumerate(letters, start=3)}
    model = {"type": "BPE", "unk_token": "[UNK]", "fuse_unk": False, "vocab": vocab, "merges": []}
    added = [
        {"id": vocab[name], "content": name, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for name in ("[STOP]", "[UNK]", "[SPACE]", "[START]")
    ]
    text = {"version": "1.0", "added_tokens": added, "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(text))


def write_conds(folder: Path) -> None:
    rng = torch.Generator().manual_seed(1)
    conds = {
        "t3": {
            "speaker_emb": torch.randn(1, 256, generator=rng),
            "cond_prompt_speech_tokens": torch.randint(6561, (1, 150), generator=rng),
            "emotion_adv": torch.full((1, 1, 1), 0.5),
            "clap_emb": None,
        },
        "gen": {
            "prompt_token": torch.randint(6561, (1, 10), generator=rng),
            "prompt_token_len": torch.tensor([10]),
            "prompt_feat": torch.randn(1, 20, 80, generator=rng),
            "prompt_feat_len": None,
            "embedding": torch.randn(1, 192, generator=rng),
        },
    }
    torch.save(conds, folder / "conds.pt")


def folder_of(at: Path, files: dict[str, Tensors], *, kind: str = "safetensors", conds: bool = True) -> Path:
    at.mkdir(exist_ok=True)
    for stem, role in (("t3_cfg", "t3"), ("s3gen", "s3gen"), ("ve", "ve")):
        if kind == "pt":
            torch.save(files[role], at / f"{stem}.pt")
        else:
            save_file(files[role], at / f"{stem}.safetensors")
    write_vocabulary(at)
    if conds:
        write_conds(at)
    return at


def test_a_folder_of_official_files_speaks(english: dict[str, Tensors], tmp_path: Path) -> None:
    before = torch.get_rng_state()
    tts = TTS(folder_of(tmp_path / "m", english))
    audio = tts.say("Hello there.", seed=1)
    assert tts.name == "english"
    assert tts.notice is None
    assert len(audio.samples) == 960 * audio.metrics.tokens > 0
    assert np.isfinite(audio.samples).all()
    assert torch.equal(torch.get_rng_state(), before)


def test_both_formats_and_the_old_wrapping_say_the_same(english: dict[str, Tensors], tmp_path: Path) -> None:
    said = [
        TTS(folder_of(tmp_path / kind, english, kind=kind)).say("Hello", seed=1)
        for kind in ("safetensors", "pt")
    ]
    wrapped = folder_of(tmp_path / "pt", english, kind="pt")
    torch.save({"model": [english["t3"]]}, wrapped / "t3_cfg.pt")
    said.append(TTS(wrapped).say("Hello", seed=1))
    assert len({audio.sha256 for audio in said}) == 1


def test_what_is_loaded_is_what_was_written(english: dict[str, Tensors], tmp_path: Path) -> None:
    source = TTS(folder_of(tmp_path / "m", english))._model.source
    t3 = t3_weights(source, "cpu", "float32")
    flow, vocoder = rendering_weights(source, "cpu")
    for name, t in t3.state_dict().items():
        assert torch.equal(t, english["t3"][name]), name
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        T3(ENGLISH.t3), SpeechTokenizer(ENGLISH.speech_tokenizer), Flow(ENGLISH.flow)
        hift = new_vocoder(ENGLISH.vocoder)
    for name, t in vocoder.state_dict().items():
        assert torch.allclose(t, hift.state_dict()[name], rtol=1e-5, atol=1e-7), name
    loaded = [*t3.parameters(), *flow.parameters(), *vocoder.parameters()]
    assert not any(p.requires_grad for p in loaded)
    buffers = [b for net in (t3, flow, vocoder) for b in net.buffers()]
    assert not any(t.is_meta for t in [*loaded, *buffers])


def test_turbo_speaks_from_its_own_file_names(tmp_path: Path) -> None:
    files = official(TURBO)
    save_file(files["t3"], tmp_path / "t3_turbo_v1.safetensors")
    save_file(files["s3gen"], tmp_path / "s3gen_meanflow.safetensors")
    save_file(files["ve"], tmp_path / "ve.safetensors")
    letters = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyzĠ.HT")}
    (tmp_path / "vocab.json").write_text(json.dumps({**letters, "<|endoftext|>": 30}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[laugh]": 31}))
    write_conds(tmp_path)
    audio = TTS(tmp_path).say("Hello there. [laugh]", seed=1)
    assert audio.metrics.tokens >= 3  # the silence at the end
    assert np.isfinite(audio.samples).all()


def test_a_clip_becomes_a_voice_and_is_converted_without_t3(
    english: dict[str, Tensors], tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "m", english)
    t = np.arange(48_000) / 24_000
    soundfile.write(tmp_path / "a.wav", 0.3 * np.sin(2 * np.pi * 200 * t * (1 + t)), 24_000)
    tts = TTS(folder)
    voice = tts.voice(tmp_path / "a.wav")
    assert (len(voice.speaker), len(voice.flow_speaker), len(voice.flow_prompt_mel)) == (256, 192, 100)
    assert tts.say("Hello", voice=voice, seed=1).sha256 != tts.say("Hello", seed=1).sha256
    (folder / "t3_cfg.safetensors").unlink()
    with VoiceConverter.load(folder, kind="english") as converter:
        assert converter.convert(tmp_path / "a.wav", voice=voice, seed=1).seconds == pytest.approx(2.0)


def test_a_folder_without_listeners_still_says_which_file_is_missing(
    english: dict[str, Tensors], tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "m", english)
    (folder / "ve.safetensors").unlink()
    with pytest.raises(ModelMissing, match=r"ve\.safetensors"):
        TTS(folder)


def test_the_default_voice_comes_from_conds_and_may_be_absent(
    english: dict[str, Tensors], tmp_path: Path
) -> None:
    mute = TTS(folder_of(tmp_path / "m", english, conds=False))
    with pytest.raises(VoiceError, match="no voice of its own"):
        mute.say("Hello")
    write_conds(tmp_path)
    assert len(mute.say("Hello", voice=tmp_path / "conds.pt", seed=1).samples) > 0


Damage = Callable[[dict[str, Tensors], Path], Any]


def _broken(role: str, change: Callable[[Tensors], Any]) -> Damage:
    def damage(files: dict[str, Tensors], at: Path) -> None:
        tensors = {name: t.clone() for name, t in files[role].items()}
        change(tensors)
        folder_of(at, {**files, role: tensors})

    return damage


def _cut(name: str) -> Damage:
    def damage(files: dict[str, Tensors], at: Path) -> None:
        path = folder_of(at, files) / name
        path.write_bytes(path.read_bytes()[:-1000])

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    "missing": (_broken("t3", lambda t: t.pop("speech_head.weight")), "1 missing (speech_head.weight)"),
    "extra": (_broken("t3", lambda t: t.update(more=torch.zeros(1))), "1 extra (more)"),
    "misshapen": (
        _broken("t3", lambda t: t.update({"text_emb.weight": torch.zeros(2, 32)})),
        "1 misshapen (text_emb.weight (2, 32) instead of (300, 32))",
    ),
    "NaN": (
        _broken("t3", lambda t: t["tfmr.norm.weight"].__setitem__(3, float("nan"))),
        "1 not finite (tfmr.norm.weight)",
    ),
    "infinite": (
        _broken("s3gen", lambda t: t["flow.encoder_proj.bias"].fill_(float("-inf"))),
        "1 not finite (encoder_proj.bias)",
    ),
    "half a pair": (
        _broken("s3gen", lambda t: t.pop("mel2wav.conv_pre.parametrizations.weight.original1")),
        "1 missing (conv_pre.weight)",
    ),
    "another model's flow": (
        _broken(
            "s3gen", lambda t: t.update({"flow.decoder.estimator.time_embed_mixer.weight": torch.zeros(1)})
        ),
        "1 extra (decoder.estimator.time_embed_mixer.weight)",
    ),
    "truncated T3": (_cut("t3_cfg.safetensors"), "t3_cfg.safetensors"),
    "truncated S3Gen": (_cut("s3gen.safetensors"), "s3gen.safetensors"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_weights_that_do_not_fit_are_reported_by_name(
    kind: str, english: dict[str, Tensors], tmp_path: Path
) -> None:
    damage, named = DAMAGES[kind]
    damage(english, tmp_path)
    with pytest.raises(CheckpointError) as report:
        TTS(tmp_path)
    assert named in report.value.got
    assert str(tmp_path) in report.value.got
    assert report.value.exit_code == 5


def test_listeners_are_checked_when_they_are_loaded(english: dict[str, Tensors], tmp_path: Path) -> None:
    _broken("ve", lambda t: t.pop("proj.bias"))(english, tmp_path)
    soundfile.write(tmp_path / "a.wav", np.sin(np.arange(48_000) / 20), 24_000)
    tts = TTS(tmp_path)
    with pytest.raises(CheckpointError, match=r"1 missing \(proj\.bias\)"):
        tts.voice(tmp_path / "a.wav")


def test_half_precision_files_are_spoken_in_full(english: dict[str, Tensors], tmp_path: Path) -> None:
    half = {
        role: {name: t.half() if t.is_floating_point() else t for name, t in tensors.items()}
        for role, tensors in english.items()
    }
    tts = TTS(folder_of(tmp_path, half))
    assert {p.dtype for p in rendering_weights(tts._model.source, "cpu")[0].parameters()} == {torch.float32}
    assert np.isfinite(tts.say("Hello", seed=1).samples).all()


def test_a_file_chosen_by_option_is_used(english: dict[str, Tensors], tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", english)
    other = {**english["t3"], "speech_head.weight": -english["t3"]["speech_head.weight"]}
    save_file(other, folder / "mine.safetensors")
    said = TTS(folder, t3="mine.safetensors").say("Hello", seed=1)
    assert said.sha256 != TTS(folder).say("Hello", seed=1).sha256
    with pytest.raises(ConfigError, match="no such t3"):
        TTS(folder, t3="yours.safetensors")


def test_an_official_model_takes_the_two_step_decoder(english: dict[str, Tensors], tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", english)
    two_steps = official(replace(ENGLISH, flow=replace(ENGLISH.flow, meanflow=True)))["s3gen"]
    save_file(two_steps, folder / "s3gen_meanflow.safetensors")
    with TTS(folder) as own, TTS(folder, s3gen="meanflow") as borrowed:
        assert not own._model.info.preset.flow.meanflow
        assert borrowed._model.info.preset.flow.meanflow
        assert borrowed.name == own.name
        one, other = own.say("Hello", seed=1), borrowed.say("Hello", seed=1)
    assert other.metrics.tokens == one.metrics.tokens
    assert other.sha256 != one.sha256
    with TTS(folder, s3gen=folder / "s3gen_meanflow.safetensors") as by_path:
        assert by_path.say("Hello", seed=1).sha256 == other.sha256


def test_a_file_that_is_no_two_step_decoder_is_refused(english: dict[str, Tensors], tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", english)
    save_file(english["s3gen"], folder / "s3gen_meanflow.safetensors")
    with pytest.raises(CheckpointError, match=r"no two-step decoder.*time_embed_mixer"):
        TTS(folder, s3gen="meanflow")
    (folder / "s3gen_meanflow.safetensors").write_bytes(b"cut off")
    with pytest.raises(CheckpointError, match="cannot be read"):
        TTS(folder, s3gen="meanflow")


def test_layers_that_are_packed_are_left_in_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    t3 = replace(ENGLISH.t3, backbone=replace(TINY_PRESET.t3.backbone, width=64, heads=1, ffn=128))
    preset = replace(ENGLISH, t3=t3)
    monkeypatch.setattr(load_module, "PRESETS", {"english": preset})
    files = official(preset)
    source = load_module.load_model(folder_of(tmp_path / "m", files), offline=True, options={}).source
    lean, _ = open_packed(source, OnnxFormat(), lambda: t3_weights(source, "cpu", "float32"))
    whole = t3_weights(source, "cpu", "float32")
    left = {name for name, weight in lean.named_parameters() if weight.is_meta}
    assert left == {name for name in files["t3"] if name.startswith("tfmr.") and "embed_tokens" not in name}
    assert not any(weight.is_meta for weight in whole.parameters())
    # What is left is still checked: a file that does not fit is refused as ever.
    bad = {**files, "t3": {**files["t3"], "tfmr.norm.weight": torch.ones(3)}}
    source = load_module.load_model(folder_of(tmp_path / "bad", bad), offline=True, options={}).source
    with pytest.raises(CheckpointError, match=r"tfmr\.norm\.weight"):
        open_packed(source, OnnxFormat(), lambda: t3_weights(source, "cpu", "float32"))


def test_packed_layers_give_the_same_tokens_from_file_and_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    t3 = replace(ENGLISH.t3, backbone=replace(TINY_PRESET.t3.backbone, width=64, heads=1, ffn=128))
    preset = replace(ENGLISH, t3=t3)
    monkeypatch.setattr(load_module, "PRESETS", {"english": preset})
    profile = replace(PROFILES["fast"], decoder=(Preference("onnx", "int8"),))
    monkeypatch.setattr(capabilities, "decoder_unsupported_reason", lambda *_: None)
    from_file = load_module.load_model(folder_of(tmp_path / "m", official(preset)), offline=True, options={})
    flow, hift = rendering_weights(from_file.source, "cpu")
    loaded = t3_weights(from_file.source, "cpu", "float32")
    in_ram = replace(from_file, source=in_memory(from_file.info, t3=loaded, flow=flow, vocoder=hift))
    with TTS.over(from_file, profile) as lean, TTS.over(in_ram, profile) as packed:
        assert lean.plan.decoder.backend.name == packed.plan.decoder.backend.name == "onnx"
        assert packed.say("Hello there.", seed=1).sha256 == lean.say("Hello there.", seed=1).sha256
