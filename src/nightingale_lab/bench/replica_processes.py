"""The processes of replicas that this process has started, for tests and benchmarks that kill one of them."""

from __future__ import annotations

import os
from pathlib import Path


def replica_processes() -> list[int]:
    """Return the ids of the replicas whose Ray was started by this process (Linux only)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_replica = (folder / "cmdline").read_text().startswith("ray::ServeReplica")
            if is_replica and _is_descendant(int(folder.name)):
                found.append(int(folder.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def _is_descendant(process: int) -> bool:
    while process > 1 and process != os.getpid():
        process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return process == os.getpid()
