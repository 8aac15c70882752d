"""A worker of a batch that ends its process when it is given a certain text."""

from __future__ import annotations

import os
from typing import Any

from nightingale.ray.batch_worker import BatchWorker

POISON = "This sentence ends the process."


class PoisonWorker(BatchWorker):
    """Speaks all rows but one."""

    def _speak(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if any(row["text"] == POISON for row in rows):
            os._exit(1)
        return super()._speak(rows)
