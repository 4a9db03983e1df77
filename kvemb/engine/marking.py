"""Making and dropping marks: durable points that the store keeps (kvemb.durability.marks).

A mark's point is written like any other, in the background, and shares unchanged files with the points around it. If
nothing has changed since the last point, the mark keeps that one.
"""

from __future__ import annotations

from functools import partial

from kvemb.durability import layout
from kvemb.durability.attachments import Attachments
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
