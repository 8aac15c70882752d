"""The first request of a fresh process: its latency and peak memory, with empty caches and with filled ones.

    python -m nightingale_lab.bench.speed.cold '{"model": "wren", …}'

is what `cold_start` runs in a new process, since a warm one cannot measure this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nightingale.errors import EngineFault
from nightingale_lab.bench.speed.memory import gpu_peak_mb, peak_memory_mb


def cold_rows(settings: dict[str, Any], text: str) -> list[dict[str, Any]]:
    """Return the start of two processes: the first one on a machine, and another one after it.

    For the first one, the caches of compiled kernels and packed weights are empty. Weights are not fetched.
    """
    with tempfile.TemporaryDirectory(prefix="nightingale-cold-") as folder:
        caches = empty_caches(Path(folder))
        return [
            {"run": run, **cold_start(settings, text, caches)} for run in ("first on this machine", "again")
        ]


def empty_caches(folder: Path) -> dict[str, str]:
    """Return environment variables that put every cache of machine code and packed weights into a folder."""
    names = ("NIGHTINGALE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    return {name: str(folder / name.lower()) for name in names}


def cold_start(
    settings: dict[str, Any], text: str, environment: dict[str, str] | None = None
) -> dict[str, float]:
    """Return the ms to import, to load and to the first audio, from the start of a process; peak memory."""
    asked = json.dumps({**settings, "text": text, "begun": time.time()})
    command = [sys.executable, "-m", "nightingale_lab.bench.speed.cold", asked]
    environment = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise EngineFault(
            "a fresh process made no audio",
            got=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1],
            fix="Try `nightingale say` with the same model.",
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    asked = json.loads(sys.argv[1])
    begun, text, profile = asked.pop("begun"), asked.pop("text"), asked.pop("profile", None)
    from nightingale.engine import TTS

    imported = time.time()
    tts = TTS(asked.pop("model", None), profile=profile, **asked)
    loaded = time.time()
    stream = tts.stream(text, seed=1)
    next(stream)
    first = time.time()
    for _ in stream:
        pass
    seconds = {
        "import_ms": imported - begun,
        "load_ms": loaded - imported,
        "first_ttfa_ms": first - loaded,
        "process_to_sound_ms": first - begun,
    }
    memory = {"peak_memory_mb": peak_memory_mb(), "gpu_peak_mb": gpu_peak_mb()}
    result = {name: round(1000 * value, 1) for name, value in seconds.items()}
    result |= {name: mb for name, mb in memory.items() if mb is not None}
    sys.stdout.write(json.dumps(result) + "\n")
    tts.close()


if __name__ == "__main__":
    main()
