"""Constants of trained networks are written once, in torch-free modules beside the networks, and imported."""

from __future__ import annotations

import ast
from collections import defaultdict

from project.source_tree import parse, python_files, relative

OF_THE_VOCODER_AND_FLOW = {
    "F0_LAYERS",
    "GUIDANCE",
    "GUIDED_STEPS",
    "HEAD_WIDTH",
    "MAGNITUDE_LIMIT",
    "MEANFLOW_STEPS",
    "MISH_LINEAR_FROM",
    "NEIGHBOURHOOD_BANDS",
    "SAMPLE_LIMIT",
    "SINE_AMPLITUDE",
    "VOICED_ABOVE_HZ",
    "VOICED_NOISE",
}
"""Still written beside each copy of these networks; they go with the copies, and nothing is to be added."""


def numbers() -> dict[tuple[str, float], set[str]]:
    """Return the files below src that give a constant of a name a number, by name and number."""
    found: dict[tuple[str, float], set[str]] = defaultdict(set)
    for path in python_files():
        for node in parse(path).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            value = getattr(node, "value", None)
            if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
                for target in targets:
                    if isinstance(target, ast.Name) and target.id.isupper():
                        found[target.id, value.value].add(relative(path))
    return found


def test_a_number_of_a_network_is_not_written_again_elsewhere() -> None:
    repeated = {
        name: sorted(files)
        for (name, _), files in numbers().items()
        if len(files) > 1 and any("/models/chatterbox/" in file for file in files)
    }
    # The library of voices, which the networks do not need, knows how many codes there are.
    repeated.pop("SPEECH_CODES", None)
    assert repeated.keys() <= OF_THE_VOCODER_AND_FLOW, repeated
