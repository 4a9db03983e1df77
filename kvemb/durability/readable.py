"""Checkpoints read in place, by whoever: links stand for their files, so nothing is left in them and none is changed.

Streams; no thread contract but that of the database that is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvemb.contracts import ColdDatabase, ColdStore
from kvemb.durability import changes, cold_databases, inventory, layout
from kvemb.durability.manifest import Epoch, Manifest
from kvemb.rows.codec import Ordered

BATCH_ROWS = 65_536


class Readable:
    """A checkpoint opened in place: its rows by variable, and what it says of itself."""

    def __init__(self, path: Path, described: Manifest, database: ColdDatabase) -> None:
        self.path, self.described = path, described
        self._database = database
        self._stores: dict[str, ColdStore] = {}

    def rows(self, variable: str) -> ColdStore | None:
        """Return a variable's rows, None where it has no such variable."""
        if variable not in self.described.variables:
            return None
        if variable not in self._stores:
            schema = self.described.variables[variable].schema
            self._stores[variable] = self._database.attach(variable, schema)
        return self._stores[variable]

    def recorded(self, epochs: list[Epoch], variable: str) -> tuple[bool, Iterator[Ordered]]:
        """See changes.recorded; batches of at most BATCH_ROWS."""
        cleared, batches = changes.recorded(self.path / layout.CHANGES, epochs, variable)
        return cleared, (batch[at : at + BATCH_ROWS] for batch in batches for at in range(0, len(batch), BATCH_ROWS))


@contextmanager
def database_in_place(
    source: Path, described: Manifest, open_database: Callable[[Path, Manifest], ColdDatabase]
) -> Iterator[ColdDatabase]:
    """Yield a checkpoint's rows, opened in place by open_database and closed after. Raises Corruption, ColdStoreError,
    which name a damaged file.
    """
    inventory.check(source, described)
    with layout.mirrored(source / layout.ROWS) as rows:
        with inventory.naming(source, described):
            database = open_database(rows, described)
        try:
            yield database
        finally:
            database.close()


@contextmanager
def opened(path: Path, described: Manifest) -> Iterator[Readable]:
    """Open a checkpoint in place, with little memory. Raises Corruption, ColdStoreError."""
    with database_in_place(path, described, cold_databases.to_read) as database:
        yield Readable(path, described, database)
