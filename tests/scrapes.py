"""What a scrape says: samples by name and labels."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from pathlib import Path

    from prometheus_client.samples import Sample


class Scrape:
    """The text of a scrape, taken apart."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.types: dict[str, str] = {}
        self.samples: list[Sample] = []
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self.types[sample.name] = family.type
                self.samples.append(sample)

    @classmethod
    def of_folder(cls, folder: Path) -> Scrape:
        """All processes that wrote there, added up as Prometheus' client does it.

        Its reader trips over a file that another process has made and not yet filled: then the next try is good.
        """
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
        for _ in range(200):
            try:
                return cls(generate_latest(registry).decode())
            except struct.error:
                time.sleep(0.01)
        return cls(generate_latest(registry).decode())

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the samples with these labels (and others); None: there is none."""
        found = [
            sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None

    def labels(self, name: str) -> set[str]:
        """The names of the labels of a metric."""
        return {label for sample in self.samples if sample.name == name for label in sample.labels}

    def values_of(self, name: str, label: str) -> set[str]:
        """The values of a label of a metric."""
        return {sample.labels[label] for sample in self.samples if sample.name == name and label in sample.labels}
