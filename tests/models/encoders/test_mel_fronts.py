"""The four spectrograms equal upstream's at sampled points, and refuse clips they cannot analyse."""

from __future__ import annotations

import pytest
import torch

from nightingale.errors import BadReference
from nightingale.models.layers.mel import FlowMel, KaldiFbank, TokenMel, VoiceMel, slaney_filters
from nightingale.models.layers.mel_config import FLOW_MEL, TOKEN_MEL, VOICE_MEL


def sampled(mel):
    """Return 16 of (bands, frames): bands 0, 7, 31 and last, at frames 0, 17, 40 and last."""
    return mel[[0, 7, 31, -1]][:, [0, 17, 40, -1]].flatten()


# fmt: off
FLOW = [-6.627854, -6.170048, -6.78328, -6.451049, -6.569179, -1.224703, -6.081171, -7.356623,
        -6.167927, -2.288431, -6.833208, -6.421581, -6.236881, -6.428611, -6.573792, -6.420672]
TOKEN = [-0.5038962, -0.696645, -0.1876469, -0.5743876, -0.5826179, -0.5398347, 0.8877143, -0.6043186,
         -0.7118473, -0.4548833, 0.2469919, -0.2816397, -0.3814118, -0.1904817, -0.4029725, -0.4006002]
VOICE = [1.076014e-05, 4.239579e-06, 0.01088618, 2.728563e-07,
         8.874539e-06, 2.032655e-06, 0.01278108, 9.653739e-07,
         2.40794e-06, 2.572821e-06, 0.0005133587, 1.334674e-06,
         1.320421e-06, 3.756022e-06, 2.633279e-06, 4.681672e-06]
FBANK = [-15.91937, -15.60229, -10.82386, -15.94238, -13.39029, -13.45887, -4.204775, -13.20404,
         -10.22395, -11.00468, -2.076822, -10.93659, -5.569674, -5.879676, -5.424361, -5.375416]
# fmt: on


def test_flow_mel_equals_upstream(clip):
    mel = FlowMel()(clip(1.0, 24_000)[None])
    assert mel.shape == (1, 80, 50)
    torch.testing.assert_close(sampled(mel[0]), torch.tensor(FLOW), rtol=2e-5, atol=2e-5)


def test_token_mel_equals_upstream(clip):
    mel = TokenMel()(clip(1.0, 16_000)[None])
    assert mel.shape == (1, 128, 100)
    torch.testing.assert_close(sampled(mel[0]), torch.tensor(TOKEN), rtol=2e-5, atol=2e-5)


def test_voice_mel_equals_upstream(clip):
    mel = VoiceMel()(clip(1.0, 16_000)[None])
    assert mel.shape == (1, 101, 40)
    torch.testing.assert_close(sampled(mel[0].T), torch.tensor(VOICE), rtol=1e-4, atol=1e-10)


def test_fbank_equals_torchaudio(clip):
    features = KaldiFbank()(clip(1.0, 16_000)[None])
    assert features.shape == (1, 98, 80)
    torch.testing.assert_close(sampled(features[0].T), torch.tensor(FBANK), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("config", "total", "centroid", "peak"),
    [
        (FLOW_MEL, 6.399892, 1227.582, 0.02666536),
        (TOKEN_MEL, 3.190986, 192.3153, 0.04168175),
        (VOICE_MEL, 0.9994972, 59.54316, 0.01332995),
    ],
)
def test_slaney_filters_equal_librosa(config, total, centroid, peak):
    filters = slaney_filters(config).double()
    bins = torch.arange(filters.shape[1], dtype=torch.float64)
    assert filters.sum().item() == pytest.approx(total, rel=1e-6)
    assert (filters * bins).sum().item() == pytest.approx(centroid, rel=1e-6)
    assert filters.max().item() == pytest.approx(peak, rel=1e-6)


def test_each_clip_of_a_batch_has_its_own_floor(clip):
    wav = torch.stack((clip(1.0, 16_000), 0.001 * clip(1.0, 16_000)))
    front = TokenMel()
    torch.testing.assert_close(front(wav)[1], front(wav[1:])[0])


@pytest.mark.parametrize("front", [FlowMel(), TokenMel(), VoiceMel()])
def test_front_ends_add_nothing_to_a_state_dict(front):
    assert front.state_dict() == {}


def test_filters_survive_building_on_the_meta_device(clip):
    with torch.device("meta"):
        front, fbank = TokenMel(), KaldiFbank()
    wav = clip(0.5, 16_000)[None]
    torch.testing.assert_close(front(wav), TokenMel()(wav))
    torch.testing.assert_close(fbank(wav), KaldiFbank()(wav))


@pytest.mark.parametrize(
    ("front", "enough"), [(FlowMel(), 721), (TokenMel(), 201), (VoiceMel(), 201), (KaldiFbank(), 400)]
)
def test_a_clip_shorter_than_one_window_is_refused(front, enough):
    with pytest.raises(BadReference, match=f"at least {enough} samples"):
        front(torch.zeros(1, enough - 1))
    # Padding lets a centred spectrogram analyse fewer samples than its transform.
    if enough != 721:
        assert front(torch.zeros(1, enough)).isfinite().all()
