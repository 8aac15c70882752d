"""The whole ExecuTorch export of wren, run by ExecuTorch's runtime (`make executorch`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nightingale.export import export_model

pytest.importorskip("executorch", reason="executorch is not installed (make executorch)")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch.export and executorch, for its own code
def test_the_programs_equal_the_engine(tmp_path: Path) -> None:
    """The export speaks a sentence greedily: equal tokens, and logits, mel and samples within the bounds.

    The caches are proven by it: the sentence takes three prefills and more than fifty steps, several flow blocks
    and several vocoder blocks.
    """
    export_model("wren", tmp_path / "out", file_format="executorch")
    card = json.loads((tmp_path / "out" / "export.json").read_text())
    check = card["check"]
    print(check, {file.name: file.stat().st_size for file in (tmp_path / "out").glob("*.pte")})
    assert check["tokens"] > 50
    assert check["other_tokens"] == 0
    assert check["logits"] < 1e-4
    assert check["mel"] < 1e-4
    assert check["samples_db"] < -55
