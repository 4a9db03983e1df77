"""Opens checkpoints in place, through a temporary directory of links, so that none of their files is added or changed.

As thread-safe as the database that is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kvemb.contracts import ColdDatabase, ColdStore
from kvemb.durability import changes, cold_databases, inventory, layout
from kvemb.durability.manifest import Epoch, Manifest
from kvemb.rows.codec import Ordered


class ReadableCheckpoint:
    """A checkpoint opened in place: its rows by variable, and its manifest."""

    def __init__(self, path: Path, described: Manifest, database: ColdDatabase) -> None:
        self.path, self.described = path, described
        self._database = database
        self._stores: dict[str, ColdStore] = {}

    def rows(self, variable: str) -> ColdStore | None:
        """Return a variable's rows, None if the checkpoint does not have the variable."""
        if variable not in self.described.variables:
            return None
        if variable not in self._stores:
            schema = self.described.variables[variable].schema
            self._stores[variable] = self._database.attach(variable, schema)
        return self._stores[variable]

    def recorded(self, epochs: list[Epoch], variable: str, most: int) -> tuple[bool, Iterator[Ordered]]:
        """As changes.recorded, in batches of at most `most` keys."""
        cleared, batches = changes.recorded(self.path / layout.CHANGES, epochs, variable)
        return cleared, (batch[at : at + most] for batch in batches for at in range(0, len(batch), most))


@contextmanager
def database_in_place(
    source: Path, described: Manifest, open_database: Callable[[Path, Manifest], ColdDatabase]
) -> Iterator[ColdDatabase]:
    """Open a checkpoint's database in place with open_database; it is closed when the block ends.

    Raises Corruption, ColdStoreError, naming a damaged file; CheckpointNotFound if it is deleted meanwhile.
    """
    with ExitStack() as stack:
        with layout.reading_checkpoint(source):
            inventory.check(source, described)
            rows = stack.enter_context(layout.mirrored(source / layout.ROWS))
            with inventory.naming_damaged_file(source, described):
                database = open_database(rows, described)
        stack.callback(database.close)
        yield database


@contextmanager
def opened(path: Path, described: Manifest) -> Iterator[ReadableCheckpoint]:
    """Open a checkpoint in place, with a small block cache. Raises what database_in_place raises."""
    with database_in_place(path, described, cold_databases.to_read) as database:
        yield ReadableCheckpoint(path, described, database)
