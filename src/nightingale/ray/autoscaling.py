"""The number of replicas: enough for all listeners, by the capacity that the replicas have measured."""

from __future__ import annotations

import math
from typing import Any

TARGET_SHARE = 0.8
"""The share of the capacity that is used: new replicas take time to load."""


def replicas_for(ctx: Any) -> tuple[int, dict[str, Any]]:
    """Return the number of replicas that supply all listeners; Ray applies limits and delays.

    ctx is Ray's AutoscalingContext. Replicas report "capacity" and "listeners" (`SpeechReplica`). Requests that wait
    in a proxy, because there is no replica yet, are listeners too.
    """
    reported = ctx.aggregated_metrics or {}
    capacities = [value for value in reported.get("capacity", {}).values() if value >= 1]
    listeners = sum(reported.get("listeners", {}).values()) + ctx.total_queued_requests
    if not capacities:  # none has measured it: keep what there is, and one if requests wait
        return max(ctx.target_num_replicas, 1 if listeners else 0), {}
    capacity = sum(capacities) / len(capacities)
    return math.ceil(listeners / (TARGET_SHARE * capacity)), {}
