"""The counters of a variable's Admission, when it is opened, and when they come from another checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path

from kvemb.durability import layout
from kvemb.durability.admission_counters.counter_file import CounterFile, read_counters
from kvemb.engine.engine import Engine
from kvemb.engine.specification import Specification
from kvemb.engine.table import Table
from kvemb.operations.admission_counters import AdmissionCounters, Counters
from kvemb.restrict import Admission

_logger = logging.getLogger("kvemb")


def memory_bytes(engine: Engine, specification: Specification) -> int:
    """Return the memory of a variable's counters, and of the copy of them that a durable point writes."""
    if specification.admission is None:
        return 0
    return specification.admission.memory_bytes * (2 if _stored(engine, specification) else 1)


def _stored(engine: Engine, specification: Specification) -> bool:
    return specification.persistent and not engine.state.read_only


def admission_counters_of(engine: Engine, specification: Specification) -> AdmissionCounters | None:
    """Return a variable's counters, as of the last durable point; None without an Admission. Raises Corruption."""
    counted = engine.opened_manifest.sightings.get(specification.name) if _stored(engine, specification) else None
    if specification.admission is None:
        if counted is not None:
            _logger.warning(
                "%r has stored sightings, but was opened without an Admission: training creates a row for every key; "
                "to continue counting, give get_variable the admission= that the variable had",
                specification.name,
            )
        return None
    counting = AdmissionCounters(specification.admission)
    if counted is not None:
        folder = engine.points.live / layout.COUNTERS
        _load(counting, specification.admission, specification.name, folder, counted, saved=True)
    return counting


def adopt_counters(engine: Engine, table: Table, folder: Path, counted: CounterFile | None) -> None:
    """Make a variable of a writable store continue from a counter file of another checkpoint; None: start at 0.

    The folder must stay until the next durable point. Raises Corruption, and the error of a point being written.
    """
    counting, admission = table.operations.admission_counters, table.specification.admission
    if counting is None or admission is None:
        with engine.lock:
            engine.checkpointer.wait()  # a point being written would take the file for one that it has
            if counted is not None:
                engine.points.adopted_counters[table.name] = folder, counted
            elif table.name in engine.opened_manifest.sightings:
                engine.points.adopted_counters[table.name] = None
        return
    with table.storage.access.held():
        if counted is None:
            counting.take(None)
        else:
            _load(counting, admission, table.name, folder, counted)


def counters_of(table: Table, folder: Path, counted: CounterFile | None) -> Counters | None:
    """Return the counters with which a variable continues from a counter file; None: from 0. Raises Corruption."""
    counting, admission = table.operations.admission_counters, table.specification.admission
    if counting is None or admission is None or counted is None:
        return None
    return _read(counting, admission, table.name, folder, counted)


def _load(
    counting: AdmissionCounters,
    admission: Admission,
    name: str,
    folder: Path,
    counted: CounterFile,
    *,
    saved: bool = False,
) -> None:
    if (counters := _read(counting, admission, name, folder, counted)) is None:
        counting.take(None)
    else:
        counting.take(counters, saved=saved)


def _read(
    counting: AdmissionCounters, admission: Admission, name: str, folder: Path, counted: CounterFile
) -> Counters | None:
    if counted.counters != counting.nbytes:
        _logger.warning(
            "the sightings of %r start again at 0: %s bytes of counters are stored, but it was opened with %r; give "
            "the stored size as memory_bytes to keep them",
            name,
            f"{counted.counters:,}",
            admission,
        )
        return None
    return read_counters(folder, counted)
