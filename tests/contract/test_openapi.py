"""Fuzzing of the API from its OpenAPI document."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from live_server import live_server

from nightingale import TTS

pytestmark = pytest.mark.contract

CHECKS = "not_a_server_error,status_code_conformance,response_schema_conformance,content_type_conformance"


def test_no_documented_request_is_a_server_error(tmp_path: Path) -> None:
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("schemathesis is not installed")
    with TTS("noise", profile="balanced") as tts, live_server(tts, max_text_chars=40) as server:
        command = [program, "run", f"{server.http}/openapi.json", "--checks", CHECKS]
        command += ["--phases", "coverage,fuzzing", "--max-examples", "20", "--request-timeout", "20"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]
