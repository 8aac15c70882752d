"""English texts to measure with: one of each length, and sentences for several listeners."""

from __future__ import annotations

from typing import Final

TEXTS: Final = {
    "word": "Good morning.",
    "short": "Your train leaves in ten minutes from platform four.",
    "medium": (
        "The quick brown fox jumps over the lazy dog, and nobody minds, because the dog has seen a good many "
        "foxes in his time."
    ),
    "long": (
        "It was a bright day, and the road went up into the hills. Nobody was on it but a boy and his dog. "
        "He had walked since six in the morning. How far is it to the village, he asked a man at the well? "
        "That depends, said the man, on whether you mean to go by the bridge or by the ford."
    ),
}
SENTENCES: Final = (
    "Your train leaves in ten minutes from platform four.",
    "The meeting was moved to Thursday afternoon at three.",
    "Please remember to bring the blue folder from my desk.",
    "It will rain in the evening, so take an umbrella with you.",
    "The library closes at eight, but the garden stays open.",
    "We walked along the river until the sun went down.",
    "Could you tell me where the nearest pharmacy is?",
    "She opened the window and let the fresh air in.",
    "The new bridge was finished two weeks ahead of time.",
    "Dinner is ready, and everyone is waiting in the garden.",
)
