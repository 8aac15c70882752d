"""The first request of a fresh process: its latency and peak memory.

    python -m nightingale_lab.bench.speed.cold '{"model": "wren", …}'

is what `cold_start` runs in a new process, since a warm one cannot measure this.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from nightingale.errors import EngineFault


def cold_start(settings: dict[str, Any], text: str) -> dict[str, float]:
    """Return the ms to import, to load and to the first audio, from the start of a process; peak memory."""
    asked = json.dumps({**settings, "text": text, "begun": time.time()})
    command = [sys.executable, "-m", "nightingale_lab.bench.speed.cold", asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineFault(
            "a fresh process made no audio",
            got=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1],
            fix="Try `nightingale say` with the same model.",
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def peak_memory_mb() -> float | None:
    """Return the peak resident memory of this process on the host, where the system reports it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1e6 if sys.platform == "darwin" else 1e3), 1)


def gpu_peak_mb() -> float | None:
    """Return the peak memory of this process on the GPU; None if it has not used one."""
    torch = sys.modules.get("torch")
    return round(torch.cuda.max_memory_allocated() / 1e6, 1) if torch and torch.cuda.is_available() else None


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
