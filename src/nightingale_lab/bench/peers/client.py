"""A peer in its own process, measured like everybody else. It serves one request at a time."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nightingale_lab.bench.peers.table import Peer
from nightingale_lab.bench.speed.request import Chunks, Insight
from nightingale.errors import EngineFault

WORKER = Path(__file__).with_name("worker.py")


class PeerProcess:
    """`speaks` is a nightingale_lab.bench.speed.request.Speaks. Close it when done."""

    def __init__(self, peer: Peer, home: Path, python: Path, *more: str, threads: int) -> None:
        """more: a size, and a folder for its weights, where the peer has sizes."""
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
        self.load_ms: float = self._news()["ready"]

    def speaks(self, text: str, seed: int) -> tuple[Chunks, Callable[[], Insight]]:
        return self._sound(text, seed), Insight

    def _sound(self, text: str, seed: int) -> Iterator[float]:
        with self._lock:  # whoever comes second waits in line, as with the package itself
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"text": text, "seed": seed}) + "\n")
            self._process.stdin.flush()
            while "end" not in (news := self._news()):
                yield float(news["seconds"])

    def _news(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineFault(
                f"{self._peer.name} stopped",
                got=f"exit code {self._process.wait()}",
                allowed="news of sound",
                fix="Run its worker by hand to see why: " + " ".join(map(str, self._process.args)),  # type: ignore[arg-type]
            )
        news: dict[str, Any] = json.loads(line)
        return news

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
