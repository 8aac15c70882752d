"""The first request of a fresh process: what an impatient user waits for, and what it takes in memory.

    python -m nightingale_lab.bench.speed.cold '{"model": "wren"}'

is what `cold_start` runs, in a process of its own, because nothing here can be measured in one that is warm.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from nightingale.errors import EngineFault


def cold_start(settings: dict[str, Any], text: str) -> dict[str, float]:
    """Milliseconds to import, to load and to the first sound, from the start of the process; peak memory."""
    begun = time.time()
    command = [
        sys.executable,
        "-m",
        "nightingale_lab.bench.speed.cold",
        json.dumps({**settings, "text": text, "begun": begun}),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineFault(
            "a fresh process did not speak",
            got=done.stderr.strip().splitlines()[-1]
            if done.stderr.strip()
            else f"exit code {done.returncode}",
            allowed="a first sound",
            fix="Try `nightingale say` with the same model.",
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def peak_memory_mb() -> float | None:
    """The most memory this process ever had, on the host."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1e6 if sys.platform == "darwin" else 1e3), 1)


def gpu_peak_mb() -> float | None:
    import torch

    return round(torch.cuda.max_memory_allocated() / 1e6, 1) if torch.cuda.is_available() else None


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
    result = {
        "import_ms": 1000 * (imported - begun),
        "load_ms": 1000 * (loaded - imported),
        "first_ttfa_ms": 1000 * (first - loaded),
        "process_to_sound_ms": 1000 * (first - begun),
    }
    result = {name: round(value, 1) for name, value in result.items()}
    memory = {"peak_memory_mb": peak_memory_mb(), "gpu_peak_mb": gpu_peak_mb()}
    sys.stdout.write(
        json.dumps({**result, **{name: mb for name, mb in memory.items() if mb is not None}}) + "\n"
    )
    tts.close()


if __name__ == "__main__":
    main()
