"""A peer in a process of its own. It serves one request at a time, as its package does."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nightingale.errors import EngineFault
from nightingale_lab.bench.peers.peer_list import Peer
from nightingale_lab.bench.speed.request import Chunks, Details

WORKER = Path(__file__).with_name("worker.py")


class PeerProcess:
    """Runs `worker.py` in the peer's environment. `synthesize` can be measured like our engine."""

    def __init__(self, peer: Peer, home: Path, python: Path, *more: str, threads: int) -> None:
        """more: a voice of Kokoro; a size, and a folder for its weights, if the peer has sizes."""
        self._peer, self._lock = peer, threading.Lock()
        command = [str(python), str(WORKER), peer.name, str(home), str(threads), *more]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
        )
        self.load_ms: float = self._message()["ready"]

    def synthesize(self, text: str, seed: int) -> tuple[Chunks, Callable[[], Details]]:
        return self._chunks(text, seed), Details

    def save(self, text: str, seed: int, wav: Path) -> None:
        """Speak a text to a file."""
        for _ in self._chunks(text, seed, str(wav)):
            pass

    def _chunks(self, text: str, seed: int, wav: str | None = None) -> Iterator[float]:
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"text": text, "seed": seed, "wav": wav}) + "\n")
            self._process.stdin.flush()
            while "end" not in (message := self._message()):
                yield float(message["seconds"])

    def _message(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineFault(
                f"{self._peer.name} stopped",
                got=f"exit code {self._process.wait()}",
                fix="Run its worker by hand to see why: " + " ".join(map(str, self._process.args)),  # type: ignore[arg-type]
            )
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
