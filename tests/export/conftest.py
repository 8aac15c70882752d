"""An export of wren, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightingale.export import export_model


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an export, which the exporter has compared with the engine."""
    folder = tmp_path_factory.mktemp("export") / "wren"
    export_model("wren", folder, file_format="onnx")
    return folder
