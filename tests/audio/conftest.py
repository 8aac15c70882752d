"""The synthetic clip as a fixture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from synthetic_clip import voice_like

from nightingale.audio.samples import Samples


@pytest.fixture
def clip() -> Callable[[float, int], Samples]:
    return voice_like
