"""Core ML packages as coremltools writes them (`make coreml`): what is in them, and what they compute."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tiny_phone import (
    SIZES,
    check_mel,
    check_samples,
    check_tokens,
    tiny_model,
    tiny_networks,
    tiny_voices,
    voiced_vocoder,
)

from nightingale.export import export_model
from nightingale.export.phone.coreml import missing_reason, write_packages, write_tables
from nightingale.export.phone.coreml_model import FORMAT, FORMAT_VERSION, CoremlModel
from nightingale.export.phone.phone_card import make_card, write_card

pytestmark = [
    pytest.mark.skipif(missing_reason() is not None, reason=f"{missing_reason()} (make coreml)"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of torch.jit and coremltools, for their own code
]
IOS_18 = 9
"""The specification version, the first one with states."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the packages of a small model."""
    folder = tmp_path_factory.mktemp("coreml")
    t3, flow, _ = tiny_networks()
    card = make_card(tiny_model(), SIZES, {}, kind=FORMAT, version=FORMAT_VERSION)
    card["programs"] = write_packages(t3, flow, voiced_vocoder(), SIZES, folder, lambda _: None)
    card["tables"] = write_tables(t3, flow, folder)
    write_card(folder, card)
    return folder


@pytest.fixture(scope="module")
def exported(folder: Path) -> CoremlModel:
    model = CoremlModel.open(folder)
    model.voices = tiny_voices()
    return model


def test_tokens_mel_and_samples_equal_the_references(exported: CoremlModel) -> None:
    """The packages are in float16."""
    check_tokens(exported, 21, atol=0.05)
    check_mel(exported, 43, atol=0.05)
    check_samples(exported, 33, -35, voiced_vocoder())


def test_both_functions_of_t3_share_weights_and_states(folder: Path, exported: CoremlModel) -> None:
    functions = exported.packages["t3"]
    assert functions.keys() == {"prefill", "step"}
    assert functions["prefill"].states == functions["step"].states
    config = tiny_model().info.preset.t3
    head = config.backbone.width * config.speech_vocab
    stored = (folder / "t3.mlpackage/Data/com.apple.CoreML/weights/weight.bin").stat().st_size
    both = 2 * 2 * (config.backbone.parameters + head)
    assert 0.5 * both < stored < 0.6 * both


def test_shapes_are_fixed_and_the_card_lists_them(folder: Path, exported: CoremlModel) -> None:
    import coremltools

    for file, functions in exported.card["programs"].items():
        spec = coremltools.utils.load_spec(str(folder / f"{file}.mlpackage"))
        assert spec.specificationVersion == IOS_18
        for name, described in functions.items():
            function = exported.packages[file][name]
            listed = {one["name"]: tuple(one["shape"]) for one in described["inputs"] + described["states"]}
            assert function.inputs == listed
            assert function.outputs == [one["name"] for one in described["outputs"]]
        features = [*spec.description.input, *(one for f in spec.description.functions for one in f.input)]
        assert features
        for feature in features:
            assert feature.type.WhichOneof("Type") == "multiArrayType"
            assert not feature.type.multiArrayType.WhichOneof("ShapeFlexibility")


def test_operations_are_in_float16_except_the_pitch_and_the_phase(exported: CoremlModel) -> None:
    """The Neural Engine has no float32. Which processor runs an operation is Core ML's choice, on the device."""
    for file, functions in exported.packages.items():
        for name, function in functions.items():
            wide = Counter(kind for kind, dtype in function.operations if dtype == "fp32")
            print(file, name, Counter(kind for kind, _ in function.operations), wide)
            if file == "vocoder":
                assert wide["conv"] == 5  # the pitch's
                assert wide["linear"] == 1  # the pitch's
                assert not wide.keys() & {"cos", "exp", "gelu", "layer_norm", "matmul"}
                kinds = Counter(dtype for kind, dtype in function.operations if kind == "cumsum")
                assert kinds == {"int32": 1}
            else:
                assert wide.keys() <= {"cast"}
            gathers = sum(kind == "gather" for kind, _ in function.operations)
            assert gathers <= 3, "embedding tables are on the host"


def test_the_packages_of_wren_equal_the_engine(tmp_path: Path) -> None:
    """A sentence takes several prefills, more than fifty steps, several flow blocks and several vocoder blocks."""
    export_model("wren", tmp_path / "out", file_format="coreml")
    card = json.loads((tmp_path / "out" / "export.json").read_text())
    sizes = {
        path.relative_to(tmp_path / "out").parts[0]: path.stat().st_size
        for path in (tmp_path / "out").rglob("*")
        if path.is_file() and path.suffix in (".bin", ".f16")
    }
    print(card["check"], sizes)
    assert card["check"]["tokens"] > 50
    assert card["check"]["logits"] < 0.05
    assert card["check"]["mel"] < 0.03
    assert card["check"]["samples_db"] < -45
