"""The metrics of several processes as one page for Prometheus: each sample has a label that names its process."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


class MergedPages(Collector):
    """The samples of several pages."""

    def __init__(self, pages: Mapping[str, str], label: str) -> None:
        self._pages, self._label = pages, label

    def collect(self) -> list[Metric]:
        families: dict[str, Metric] = {}
        for name, page in sorted(self._pages.items()):
            for family in text_string_to_metric_families(page):
                merged = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    merged.add_sample(sample.name, {**sample.labels, self._label: name}, sample.value)
        return list(families.values())


def merge_pages(pages: Mapping[str, str], *, label: str = "replica") -> bytes:
    """Return one page from the page of each process, whose name becomes the value of a label."""
    registry = CollectorRegistry()
    registry.register(MergedPages(pages, label))
    return generate_latest(registry)
