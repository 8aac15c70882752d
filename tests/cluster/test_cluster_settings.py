"""Settings of a cluster, the number of replicas, and the metrics of several replicas as one page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pydantic")

from nightingale.errors import ConfigError
from nightingale.ray.autoscaling import replicas_for
from nightingale.ray.cluster_settings import ClusterSettings
from nightingale.ray.serving import check_resources
from nightingale.server.merged_metrics import merge_pages
from nightingale.server.metrics import ServerMetrics


@pytest.mark.parametrize(
    ("given", "expected"), [("3", (3, 3)), (2, (2, 2)), ("1..8", (1, 8)), ("0..8", (0, 8)), ("2..2", (2, 2))]
)
def test_replicas_are_a_number_or_a_range(given: Any, expected: tuple[int, int]) -> None:
    assert ClusterSettings.load({"replicas": given}).replica_range == expected


@pytest.mark.parametrize("given", ["", "0", "-1", "8..1", "1...8", "many", "1..99999", True, 1.5, "0..0"])
def test_other_numbers_of_replicas_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="replicas"):
        ClusterSettings.load({"replicas": given})


def test_an_unknown_setting_is_refused_with_the_list_of_settings() -> None:
    with pytest.raises(ConfigError, match="gpus_per_replica"):
        ClusterSettings.load({"gpu": 1})


def context(listeners: list[float], *, capacity: float = 10, queued: float = 0, target: int = 1) -> Any:
    names = [f"r{number}" for number in range(len(listeners))]
    metrics = {
        "listeners": dict(zip(names, listeners, strict=True)),
        "capacity": dict.fromkeys(names, capacity),
    }
    return SimpleNamespace(
        aggregated_metrics=metrics if names else {}, total_queued_requests=queued, target_num_replicas=target
    )


@pytest.mark.parametrize(
    ("ctx", "replicas"),
    [
        (context([0]), 0),
        (context([1]), 1),
        (context([8]), 1),
        (context([9]), 2),
        (context([8, 8, 8]), 3),
        (context([8, 8, 9]), 4),
        (context([10], queued=7), 3),
        (context([], target=2), 2),
        (context([], queued=5, target=0), 1),
        (context([], target=0), 0),
    ],
)
def test_replicas_are_enough_for_all_listeners_at_four_fifths_of_their_capacity(
    ctx: Any, replicas: int
) -> None:
    assert replicas_for(ctx)[0] == replicas


def test_pages_of_several_replicas_are_one_page_with_labels() -> None:
    from prometheus_client import generate_latest

    pages = {}
    for name, count in (("a", 1), ("b", 2)):
        metrics = ServerMetrics()
        metrics.requests.labels("/v1/audio/speech", "200").inc(count)
        metrics.ttfa.observe(0.2)
        pages[name] = generate_latest(metrics.registry).decode()
    page = merge_pages(pages).decode()
    assert 'nightingale_requests_total{replica="a",route="/v1/audio/speech",status="200"} 1.0' in page
    assert 'nightingale_requests_total{replica="b",route="/v1/audio/speech",status="200"} 2.0' in page
    assert 'nightingale_ttfa_seconds_bucket{le="0.2",replica="b"} 1.0' in page
    assert page.count("# TYPE nightingale_requests_total counter") == 1


def test_too_few_cores_or_gpus_are_an_error_before_anything_starts() -> None:
    settings = ClusterSettings.load({"replicas": "4..8", "gpus_per_replica": 1, "cpus_per_replica": 0.5})
    check_resources(settings, {"CPU": 2.0, "GPU": 4.0})
    with pytest.raises(ConfigError, match="too few GPUs for 4 replicas"):
        check_resources(settings, {"CPU": 2.0, "GPU": 3.0})
    with pytest.raises(ConfigError, match="too few CPUs"):
        check_resources(settings, {"CPU": 1.0, "GPU": 4.0})
