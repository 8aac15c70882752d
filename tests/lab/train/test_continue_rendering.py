"""Sessions that continue flow, vocoder and voice encoder with recordings of people."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.train.test_session import in_threads, settings
from lab.train.tiny_training import VOCODER, make_everything_tiny, tiny_assets
from safetensors.torch import load_file, save_file

from nightingale.errors import ConfigError
from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale_lab.train import supervisor, tokenizer_people
from nightingale_lab.train.__main__ import build_parser
from nightingale_lab.train.converted import CONVERTED
from nightingale_lab.train.corpus import HUMAN, HUMAN_COPIES, Corpus
from nightingale_lab.train.human_clips import write_clips
from nightingale_lab.train.human_corpus import OTHER_RATES
from nightingale_lab.train.human_texts import write_phonemes
from nightingale_lab.train.loop import read_log
from nightingale_lab.train.pack_weights import pack
from nightingale_lab.train.plan import plan
from nightingale_lab.train.seeding import seeded
from nightingale_lab.train.session import monitor
from nightingale_lab.train.stages import TOKENS
from nightingale_lab.train.supervisor import supervise
from nightingale_lab.train.volumes import unpack

RATE_HZ = 16_000


def people(count: int, seconds: float) -> list[np.ndarray]:
    t = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    tones = [100.0 + 30 * number for number in range(count)]
    return [
        (sum(np.sin(2 * np.pi * hz * k * t) / k for k in range(1, 6)) * 0.1).astype(np.float32)
        for hz in tones
    ]


def test_a_session_continues_flow_vocoder_and_voice_encoder_from_a_packed_wren(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "POLL_EVERY_S", 0.01)
    # So the first step compares two equal tokenizers of the same speech, however many steps there is time for.
    monkeypatch.setattr(tokenizer_people, "CHANGED_SHARE", 0.0)
    make_everything_tiny(monkeypatch)
    tiny_assets(tmp_path / "assets", lines=60)
    write_clips(tmp_path / "assets" / "human_clips.npz", people(3, 2.5))
    spoken = [np.array(ids, dtype=np.uint8) for ids in ([50, 16, 60, 4], [], [70, 16, 50])]
    write_phonemes(tmp_path / "assets" / "human_phonemes.npz", spoken)
    preset = PRESETS["wren"]
    with seeded(0):
        nets = {
            "flow.": Flow(preset.flow),
            "tokenizer.": SpeechTokenizer(preset.speech_tokenizer),
            "mel2wav.": FrameVocoder(VOCODER),
        }
    s3gen = {prefix + name: t for prefix, net in nets.items() for name, t in net.state_dict().items()}
    (tmp_path / "wren").mkdir()
    save_file(pack(s3gen), tmp_path / "wren" / "s3gen.safetensors")
    brief = ["--budget-s", "0.01"]
    options = {
        "data": ["--hours", "9", "--first-hours", "0.003", "--batch-seconds", "12"],
        "tokens": ["--budget-s", "60"],
        "tokenizer-people": ["--budget-s", "0.5", "--batch", "2", "--parts", "1"],
        "voice-encoder": [*brief, "--batch", "2"],
        "vocoder": ["--max-steps", "1"],
        "flow": ["--batch", "2", "--match-s", "0", "--refine-s", "0.01", "--adversarial", "0.5"],
    }
    given = {"start_from": str(tmp_path / "wren"), "continue_rendering": True, "options": options}
    made, before = settings(tmp_path, **given), torch.get_rng_state()
    for marker in ("teacher", "people"):
        (tmp_path / "state" / marker).touch()
    try:
        status = supervise(made, plan(made), in_threads(children := []))
    finally:
        torch.set_rng_state(before)
    assert not [child.error for child in children if child.code]
    assert {row.state for row in status.rows.values()} == {"done"}

    human, copies = (Corpus.load(made.corpus / name) for name in (HUMAN, HUMAN_COPIES))
    assert (human.bank.clips, copies.bank.clips) == (3, 3 * len(OTHER_RATES))
    assert human.band_limited.all()
    assert human.speaker.any()
    # The phonemes of every clip whose transcript is known were found, in order.
    ends = human.bank.frame_offsets
    found = [human.phones[start:end] for start, end in pairwise(ends)]
    assert [list(dict.fromkeys(each[each > 16].tolist())) for each in found] == [[50, 60], [], [70, 50]]
    for part in (made.corpus / "part00", made.corpus / HUMAN):
        tokens, again = np.load(part / TOKENS), np.load(part / CONVERTED)
        assert (again.shape, again.dtype) == (tokens.shape, tokens.dtype)
        assert again.any()
    monitor(tmp_path / "state", tmp_path / "results", budget_s=1.0, write=lambda _: None)
    back = unpack([tmp_path / "results"], tmp_path / "back")
    assert set(back) == {"tokenizer_people", "voice_encoder", "vocoder", "flow.refine", "discriminators"}
    log = read_log(tmp_path / "back" / "logs" / "tokenizer_people.jsonl")
    assert log[-1]["same_codes"] > 0
    assert np.isfinite(log[-1]["likely"])
    log = read_log(tmp_path / "back" / "logs" / "flow.jsonl")
    assert 0 < log[-1]["judge"] < 2
    assert log[-1]["discriminator"] > 0
    assert log[-1]["pitch"] >= 0
    trained = load_file(tmp_path / "back" / "flow.refine.safetensors")
    start = load_file(tmp_path / "state" / "split" / "flow.refine.safetensors")
    assert set(trained) == set(start)


def test_the_vocoder_alone_is_trained_on_the_whole_corpus_as_the_given_flow_renders_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "flow.refine.safetensors").touch()
    stages = ["human", "data", "tokens", "mels-early", "mels", "vocoder"]
    made = settings(tmp_path, start_from=str(tmp_path / "from"), continue_rendering=True, stages=stages)
    tasks = {task.name: task for task in plan(made)}
    assert set(tasks) == set(stages)
    assert made.done_marker("tokens") in tasks["mels"].needs
    assert "--start-from" in tasks["mels"].arguments(1.0)


def test_without_early_mels_the_vocoder_waits_for_the_trained_flow(tmp_path: Path) -> None:
    stages = ["human", "data", "tokens", "flow", "mels", "vocoder"]
    made = settings(tmp_path, start_from=str(tmp_path), continue_rendering=True, stages=stages)
    tasks = {task.name: task for task in plan(made)}
    assert tasks["vocoder"].needs == (made.done_marker("mels"),)
    assert tasks["mels"].needs == (made.done_marker("flow"),)
    assert made.done_marker("tokens") in tasks["flow"].needs


def test_the_flow_waits_for_tokens_of_other_voices(tmp_path: Path) -> None:
    given = {"start_from": str(tmp_path), "continue_rendering": True}
    made = settings(tmp_path, **given, stages=["human", "data", "tokens", "converted", "flow"])
    tasks = {task.name: task for task in plan(made)}
    assert made.done_marker("converted") in tasks["flow"].needs
    assert made.done_marker("tokens") in tasks["converted"].needs


def test_what_is_made_from_the_tokens_of_people_waits_for_their_tokenizer(tmp_path: Path) -> None:
    given = {"start_from": str(tmp_path), "continue_rendering": True}
    stages = ["human", "data", "tokens", "tokenizer-people", "converted", "flow"]
    tasks = {task.name: task for task in plan(settings(tmp_path, **given, stages=stages))}
    trained = settings(tmp_path, **given).done_marker("tokenizer-people")
    assert trained in tasks["converted"].needs
    assert trained in tasks["flow"].needs
    assert settings(tmp_path, **given).done_marker("human") in tasks["tokenizer-people"].needs


def test_t3_is_trained_only_if_it_is_named(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "t3.safetensors")
    given = {"start_from": str(tmp_path), "continue_rendering": True}
    assert "t3" not in {task.name for task in plan(settings(tmp_path, **given))}
    made = settings(tmp_path, **given, stages=["human", "data", "tokens", "flow", "t3"])
    tasks = {task.name: task for task in plan(made)}
    assert list(tasks)[-1] == "t3"
    assert tasks["t3"].needs == (made.done_marker("tokens"), tmp_path / "t3.safetensors")
    arguments = tasks["t3"].arguments(100.0)
    build_parser().parse_args(arguments)
    assert arguments[arguments.index("--start-from") + 1] == str(tmp_path / "t3.safetensors")


def test_a_vocoder_goes_on_with_its_discriminators(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    given = {"start_from": str(tmp_path / "from"), "continue_rendering": True, "stages": ["vocoder"]}
    for name, begins_anew, plan_s in (("vocoder", True, "100.0"), ("discriminators", False, "600.0")):
        save_file({"x": torch.zeros(1)}, tmp_path / "from" / f"{name}.safetensors", {"elapsed_s": "500"})
        (task,) = plan(settings(tmp_path / name, **given))
        arguments = task.arguments(115.0)
        assert ("--discriminator-share" in arguments) == begins_anew
        assert arguments[arguments.index("--resume-from") + 1] == str(tmp_path / "from")
        assert arguments[arguments.index("--plan-s") + 1] == plan_s


def test_a_stage_that_the_plan_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vocodr"):
        plan(settings(tmp_path, start_from=str(tmp_path), continue_rendering=True, stages=["vocodr"]))
