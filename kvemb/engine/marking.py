"""Making and dropping marks: durable points that the store keeps (kvemb.durability.marks).

A mark's point is written like any other, in the background, and shares unchanged files with the points around it. If
nothing has changed since the last point, the mark keeps that one.
"""

from __future__ import annotations

import hashlib
from functools import partial

from kvemb.durability import layout, manifest
from kvemb.durability.attachments import Attachments
from kvemb.durability.epochs import files_between, variables_dropped_between
from kvemb.durability.manifest import Manifest
from kvemb.durability.marks.kept import check_name, read_marks
from kvemb.durability.marks.mark import Mark
from kvemb.engine.engine import Engine


def mark(engine: Engine, name: str | None, attached: Attachments, *, block: bool) -> Mark:
    """Keep the present state under a mark. See Store.mark."""
    name = check_name(name)
    engine.state.check_here()
    with engine.no_point_in_progress():
        points = engine.points
        made = points.marks.new(name, points.current.store, points.coming_number)
        keep = partial(points.marks.keep, made)
        if attached.names or attached.extra:
            writing = engine.checkpointer.start(engine.parts(), None, attached=attached, keep=keep)
        elif (flushed := engine.checkpointer.flush(engine.parts(), keep)) is not None:
            writing = flushed
        else:
            made = points.marks.new(name, points.current.store, points.current.point)
            points.marks.keep(made)
            return made
    if block:
        writing.result()
    return made


def marks(engine: Engine) -> list[Mark]:
    """Return the complete marks, the oldest first. See Store.marks."""
    engine.state.check_open()
    if engine.state.read_only:
        return [] if layout.is_checkpoint(engine.path) else read_marks(engine.path)
    return engine.points.marks.all()


def drop_mark(engine: Engine, given: Mark | str) -> None:
    """Drop a mark, and its point unless that is the current one or another mark keeps it. See Store.drop_mark."""
    engine.state.check_here()
    with engine.no_point_in_progress():
        points = engine.points
        points.marks.drop(points.marks.find(given, points.current.store))
        points.drop_others()


def find(engine: Engine, identity: str) -> Mark | None:
    """Return the mark with this id, if the store has it."""
    return next((mark for mark in marks(engine) if mark.id == identity), None)


def content_of(described: Manifest) -> str:
    """Return a checksum of all table files, counter files and counts of a durable point: if it is equal, so is all."""
    kept = (".sst", ".blob", ".counts")
    files = sorted(entry.sha256 for name, entry in described.files.items() if name.endswith(kept))
    return hashlib.sha256(repr([files, _counts(described)]).encode()).hexdigest()


def _counts(described: Manifest) -> list[tuple[str, int, int, int]]:
    entries = sorted(described.variables.items())
    return [(name, each.rows, each.step, each.optimizer_steps) for name, each in entries if each.checkpoint]


def has_rows_of(engine: Engine, mark: Mark | None, content: str) -> bool:
    """Whether the present rows are certainly those of a mark. mark: None if the store does not have it.

    content: content_of() its point. False also if that is unknown.
    """
    engine.state.check_here()
    if engine.state.read_only:
        return _is_same(engine.opened_manifest, mark, content)
    with engine.no_point_in_progress():
        return engine.checkpointer.is_flushed(engine.parts()) and _is_same(engine.points.current, mark, content)


def _is_same(present: Manifest, mark: Mark | None, content: str) -> bool:
    if content_of(present) == content:
        return True
    if mark is None:
        return False
    then = manifest.read(mark.path)
    if layout.history(then.point) != layout.history(present.point) or then.point > present.point:
        return False
    return (
        (_counts(then), then.sightings) == (_counts(present), present.sightings)
        and not variables_dropped_between(then.changes, present.changes)
        and all(files_between(then.changes, present.changes, name) == [] for name in then.variables)
    )
