"""The real marker of resemble-perth, where it is installed: its mark is found in audio that was marked in chunks.

tests/cli/test_convert.py tests the rest with a marker of its own, since the package is optional.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from synthetic_clip import voice_like

from nightingale.audio.watermark import WatermarkStream, detect_watermark

pytestmark = pytest.mark.skipif(find_spec("perth") is None, reason="resemble-perth is not installed")

RATE_HZ = 24_000


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chunk_s", [0.16, 0.28, 1.28, 4.0])
def test_a_stream_is_found_to_be_marked_whatever_its_chunks(chunk_s: float) -> None:
    clip, size = voice_like(4.0, RATE_HZ), int(chunk_s * RATE_HZ)
    stream = WatermarkStream(RATE_HZ)
    marked = np.concatenate([stream.push(clip[at : at + size]) for at in range(0, len(clip), size)])
    assert len(marked) == len(clip)
    assert detect_watermark(clip, RATE_HZ) < 0.2
    assert detect_watermark(marked, RATE_HZ) > 0.9
