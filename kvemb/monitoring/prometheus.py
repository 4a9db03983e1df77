"""Figures for Prometheus: as text, as a collector of prometheus_client, and as a file for node_exporter."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kvemb.checks.brief import brief
from kvemb.errors import BackendUnavailable
from kvemb.installed import pip_install
from kvemb.monitoring.figures import ALL, AnyStore, Figure, Sample, named_stores, samples


def prometheus_text(*stores: AnyStore, **named: AnyStore) -> str:
    """Return the figures of stores in Prometheus' text format.

    Each series has the labels `store` and `variable`. Only variables that are open have series. A store that is closed,
    or a cluster that has lost a shard, has the series `kvemb_up` alone, with the value 0.

    Args:
        *stores: Stores, also of clusters. The label `store` is the store's path.
        **named: Stores by the label that they get instead, such as `reader=store`.

    Returns:
        The text, with a line for each series and its end-of-line.

    Raises:
        TypeError: If an argument is not a store.
        ValueError: If two stores would have the same label.

    Example:
        >>> from kvemb.monitoring import prometheus_text
        >>> print(prometheus_text(main=store))
        # HELP kvemb_up 1 if the store can be read; ...
        # TYPE kvemb_up gauge
        kvemb_up{store="main"} 1
        ...
    """
    found = [sample for label, store in named_stores(stores, named).items() for sample in samples(label, store)]
    return "".join(_lines(found))


def write_textfile(path: str | os.PathLike[str], /, *stores: AnyStore, **named: AnyStore) -> None:
    """Write prometheus_text() to a file, for the textfile collector of Prometheus' node_exporter.

    A file with the text replaces the old one as a whole, so nobody reads half of it.

    Args:
        path: The file. node_exporter reads files whose names end in `.prom`.
        *stores: Stores, as for prometheus_text.
        **named: Stores by their labels, as for prometheus_text.

    Raises:
        TypeError: As prometheus_text.
        ValueError: As prometheus_text.
        OSError: If the file cannot be written. The old file stays.

    Example:
        >>> import kvemb.monitoring
        >>> kvemb.monitoring.write_textfile("kvemb.prom", store)
    """
    target, text = Path(path), prometheus_text(*stores, **named)
    draft = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


class PrometheusCollector:
    """A collector of the package prometheus_client: register it, and each scrape reads the stores.

    Series are those of prometheus_text. A scrape raises nothing if a store was closed or a variable was dropped. The
    collector does not keep stores alive: a store that nothing else refers to is left out.

    Args:
        *stores: Stores, as for prometheus_text.
        **named: Stores by their labels, as for prometheus_text.

    Raises:
        TypeError: As prometheus_text.
        ValueError: As prometheus_text.
        BackendUnavailable: If prometheus_client is not installed.
    """

    def __init__(self, *stores: AnyStore, **named: AnyStore) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise BackendUnavailable(
                f"the collector needs the package prometheus-client: {error}; install: {pip_install('monitoring')}"
            ) from error
        self._counter: Any = core.CounterMetricFamily
        self._gauge: Any = core.GaugeMetricFamily
        self._stores = {label: weakref.ref(store) for label, store in named_stores(stores, named).items()}

    def collect(self) -> Iterator[Any]:
        """Read the stores. Called by prometheus_client at each scrape.

        Yields:
            A metric family of prometheus_client for each figure.
        """
        there = [(label, store) for label, reference in self._stores.items() if (store := reference()) is not None]
        families = self._families()
        for figure, labels, value in (sample for label, store in there for sample in samples(label, store)):
            families[figure].add_metric(labels, value)
        yield from families.values()

    def describe(self) -> Iterable[Any]:
        """Name the metrics, without reading the stores. Called by prometheus_client when it is registered.

        Returns:
            Metric families without samples.
        """
        return self._families().values()

    def _families(self) -> dict[Figure, Any]:
        return {
            figure: (self._counter if figure.counter else self._gauge)(
                f"kvemb_{figure.name}", figure.meaning, labels=figure.labels
            )
            for figure in ALL
        }

    def __repr__(self) -> str:
        return f"<kvemb.monitoring.PrometheusCollector of {brief(list(self._stores))}>"


def _lines(found: list[Sample]) -> Iterator[str]:
    """Yield the lines of the text format, version 0.0.4; the series of a figure must stand together."""
    for figure in ALL:
        yield f"# HELP {figure.full_name} {figure.meaning}\n"
        yield f"# TYPE {figure.full_name} {'counter' if figure.counter else 'gauge'}\n"
        for _, labels, value in (sample for sample in found if sample[0] is figure):
            pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in zip(figure.labels, labels, strict=True))
            yield f"{figure.full_name}{{{pairs}}} {value!r}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
