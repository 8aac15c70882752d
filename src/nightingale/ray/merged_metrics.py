"""The metrics of all replicas as one page for Prometheus: each sample has the label `replica`."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


class MergedPages(Collector):
    """The samples of several pages."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        self._pages = pages

    def collect(self) -> list[Metric]:
        families: dict[str, Metric] = {}
        for replica, page in sorted(self._pages.items()):
            for family in text_string_to_metric_families(page):
                merged = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    labels = {**sample.labels, "replica": replica}
                    merged.add_sample(sample.name, labels, sample.value)
        return list(families.values())


def merge_pages(pages: Mapping[str, str]) -> bytes:
    """Return one page from the page of each replica."""
    registry = CollectorRegistry()
    registry.register(MergedPages(pages))
    return generate_latest(registry)
