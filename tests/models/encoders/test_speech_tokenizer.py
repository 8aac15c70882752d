"""The speech tokenizer gives upstream's tokens, alone, in batches and on long clips."""

from __future__ import annotations

import pytest
import torch

from nightingale.errors import BadReference
from nightingale.models.chatterbox.encoders.speech_tokenizer import (
    SpeechTokenizer,
    SpeechTokenizerConfig,
    fsq_ids,
)
from nightingale_lab.train.tokenizer import fsq_straight_through

TINY = SpeechTokenizerConfig(mel_bands=16, width=128, heads=2, blocks=2)
# fmt: off
TWO_SECONDS = [
    5889, 4677, 4929, 5649, 4191, 2004, 2004, 540, 2247, 2220, 746, 1518, 1599, 1674,
    1596, 2004, 2004, 543, 6387, 6378, 4686, 5182, 5183, 5183, 4454, 4454, 4426, 4399,
    2211, 4398, 6099, 3282, 1032, 5649, 4191, 2004, 2733, 3219, 4443, 4427, 4427, 4400,
    4418, 4436, 60, 2733, 546, 546, 1275, 1275,
]
# fmt: on


@pytest.fixture(scope="module")
def tokenizer(filled):
    return filled(SpeechTokenizer(TINY))


def test_tokens_equal_upstream_exactly(tokenizer, clip):
    ids = tokenizer.tokenize(clip(2.0, 16_000))
    assert ids.dtype == torch.int64
    assert ids.tolist() == TWO_SECONDS


def test_hidden_states_equal_upstream(tokenizer, clip):
    hidden, counts = tokenizer.encoder(tokenizer.mel(clip(2.0, 16_000)[None]))
    assert counts.tolist() == [50]
    first = [4.968395, -0.9883924, 0.8198834, -1.636252, 2.263849, 0.7317337]
    last = [2.371535, -0.1188822, 0.41054, -0.1444539, 0.6270124, 0.1952623]
    torch.testing.assert_close(hidden[0, [0, -1], :6], torch.tensor([first, last]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("frames", "count", "total", "overlap", "end"),
    [
        (3001, 751, 3056212, [1356, 5181, 4454, 4398, 2166], [1761, 1761, 2085, 465]),
        (5300, 1275, 5233007, [1356, 5181, 4454, 5127, 2166], [5911, 5183, 5183, 4454]),
    ],
)
def test_long_clips_are_tokenized_as_upstream_does(tokenizer, clip, frames, count, total, overlap, end):
    ids = tokenizer.tokenize(clip(frames / 100, 16_000))
    assert len(ids) == count
    assert ids[690:710:4].tolist() == overlap
    assert ids[-4:].tolist() == end
    assert int(ids.sum()) == total


def test_the_limit_applies_after_the_floor_is_computed(tokenizer, clip):
    wav = clip(2.0, 16_000)
    assert len(tokenizer.tokenize(wav, max_tokens=20)) == 20
    assert len(tokenizer.tokenize(wav, max_tokens=500)) == 50
    mel = tokenizer.mel(wav[None])[..., :80]
    assert tokenizer.tokenize(wav, max_tokens=20).tolist() == tokenizer(mel[0]).tolist()


@pytest.mark.parametrize("padding_frames", [0, 2700])
def test_a_batch_equals_its_clips_alone(tokenizer, clip, padding_frames):
    wavs = [clip(seconds, 16_000) for seconds in (2.0, 0.73, 1.31)]
    mels = [tokenizer.mel(wav[None])[0] for wav in wavs]
    lengths = torch.tensor([mel.shape[-1] for mel in mels])
    # Padding must not matter, also that of the last window of a long clip.
    batch = torch.full((3, 16, int(lengths.max()) + padding_frames), 3.0)
    for row, mel in zip(batch, mels, strict=True):
        row[:, : mel.shape[-1]] = mel
    with torch.no_grad():
        hidden, counts = tokenizer.encoder(batch, lengths)
    for row, count, wav in zip(fsq_ids(tokenizer.quantizer(hidden)), counts.tolist(), wavs, strict=True):
        assert row[:count].tolist() == tokenizer.tokenize(wav).tolist()


def test_digits_are_read_in_base_three_least_significant_first():
    raw = torch.full((2, 8), -9.0)
    raw[1] = 9.0
    assert fsq_ids(raw).tolist() == [0, 3**8 - 1]
    raw[0, 0], raw[0, 2] = 0.0, 9.0
    assert fsq_ids(raw)[0].item() == 1 * 1 + 2 * 9


def test_straight_through_rounds_forward_and_passes_the_gradient_back():
    raw = torch.tensor([-2.0, 0.1, 0.4, 2.0], requires_grad=True)
    digits = fsq_straight_through(raw)
    torch.testing.assert_close(digits, torch.tensor([-1.0, 0.0, 0.0, 1.0]))
    assert fsq_ids(raw).item() == 0 + 1 * 3 + 1 * 9 + 2 * 27
    digits.sum().backward()
    torch.testing.assert_close(raw.grad, 0.999 * (1 - torch.tanh(raw.detach()) ** 2), rtol=1e-4, atol=1e-6)


def test_encoding_can_be_trained(tokenizer, clip):
    hidden, _ = tokenizer.encoder(tokenizer.mel(clip(0.5, 16_000)[None]))
    fsq_straight_through(tokenizer.quantizer(hidden)).square().sum().backward()
    assert tokenizer.encoder.conv1.weight.grad.abs().sum() > 0


def test_official_tensor_names_load_without_a_map():
    with torch.device("meta"):
        state = SpeechTokenizer(SpeechTokenizerConfig()).state_dict()
    # The official 104 without the mel filters and the window, which are computed.
    assert len(state) == 102
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert shapes["encoder.conv1.weight"] == (1280, 128, 3)
    assert shapes["encoder.blocks.5.attn.fsmn_block.weight"] == (1280, 1, 31)
    assert shapes["encoder.blocks.0.mlp.2.weight"] == (1280, 5120)
    assert shapes["quantizer._codebook.project_down.bias"] == (8,)
    assert "encoder.blocks.0.attn.key.bias" not in shapes
    assert SpeechTokenizerConfig().codes == 6561


@pytest.mark.parametrize("samples", [0, 100, 200])
def test_a_clip_that_is_too_short_is_refused(tokenizer, samples):
    with pytest.raises(BadReference, match="too short"):
        tokenizer.tokenize(torch.zeros(samples))


def test_the_shortest_clip_gives_one_token(tokenizer):
    assert tokenizer.tokenize(torch.zeros(201)).shape == (1,)


@pytest.mark.parametrize("padded", [False, True], ids=["alone", "in a batch"])
def test_with_a_reach_only_neighbours_matter(padded: bool) -> None:
    config = SpeechTokenizerConfig(width=32, heads=2, blocks=2, memory_taps=3, attention_reach=2)
    net = SpeechTokenizer(config).eval()
    mel = torch.randn(1, config.mel_bands, 4 * 40, generator=torch.Generator().manual_seed(0))
    other = mel.clone()
    other[..., 4 * 30 :] = 0
    lengths = torch.tensor([4 * 36]) if padded else None
    with torch.no_grad():
        one, another = (net.encoder(clip, lengths)[0] for clip in (mel, other))
    reached = 30 - config.blocks * config.attention_reach - config.blocks * (config.memory_taps // 2) - 1
    torch.testing.assert_close(one[:, :reached], another[:, :reached])
    assert not torch.allclose(one[:, reached:30], another[:, reached:30])
    assert one.isfinite().all()
