"""The checkpoints of one shard: a series in a folder of its node, from which each is pushed to the cluster's URL.

Not thread-safe, except attach() and detach().
"""

from __future__ import annotations

import os
from pathlib import Path

from kvemb import fresh_files
from kvemb.cluster.durability.manifest import id_of_part
from kvemb.cluster.messages import PushedPart
from kvemb.durability import layout
from kvemb.durability.attachments import Attachments
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.checkpointer import PendingCheckpoint
from kvemb.durability.layout import series_name
from kvemb.handle import inside
from kvemb.offline.series import CheckpointManager
from kvemb.offline.transfer import Remote
from kvemb.store import Store

# The number of checkpoints kept on the shard's node, with which the next one shares files.
KEPT = 2


class ShardCheckpoints:
    """See the module. store: the shard's. series: at the URL. folder: of the checkpoints on this node."""

    def __init__(self, store: Store, series: Remote, folder: Path) -> None:
        self._store, self._series, self._folder = store, series, folder
        self._pending: dict[int, PendingCheckpoint[Checkpoint]] = {}

    def attach(self, files: str, name: str, at: int, piece: bytes) -> None:
        """Write a piece of a file to save beside the rows of a checkpoint, at the position `at`.

        files: a name for all files of that checkpoint. Idempotent. Raises ColdStoreError.
        """
        folder = self._attached(files)
        with layout.as_cold_store_error(f"write to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
                file.seek(at)
                file.write(piece)

    def detach(self, files: str) -> None:
        """Delete these files; checkpoints that contain them keep them."""
        fresh_files.remove(self._attached(files))

    def _attached(self, files: str) -> Path:
        return self._folder.with_name("attached") / files

    def begin(self, number: int, checkpoint: str, files: str | None) -> None:
        """Take the snapshot of a checkpoint. checkpoint: the identity of the cluster's checkpoint.

        files: the name given to attach(); None: no files. Raises what Store.checkpoint raises.
        """
        received = {} if files is None else {path.name: path for path in self._attached(files).iterdir()}
        attached = Attachments(received, id=id_of_part(checkpoint, self._store.id), linked=True)
        self._pending[number] = inside(self._store).start(self._folder / series_name(number), attached=attached)

    def push(self, number: int) -> PushedPart:
        """Complete a checkpoint, and push it to the URL. Deletes older ones on this node. Raises TransferError."""
        checkpoint = self._pending.pop(number).result()
        sent = self._series.push(checkpoint, number)
        for old in CheckpointManager(self._folder).numbers()[:-KEPT]:
            fresh_files.remove(self._folder / series_name(old))
        return PushedPart(self._store.id, dict(checkpoint.variables), sent.nbytes, tuple(checkpoint.files))
