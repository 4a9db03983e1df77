"""The faults that tests/planted_faults.py plants, and the tests that reach their lines, the quickest first."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A bug in one file. right, wrong: the text to replace, which the file has once, and what replaces it.

    tests: files below tests/. hangs: whether the tests may also find it by having no end.
    """

    title: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]
    hangs: bool = False


FAULTS = [
    # Where rows are, and how they move.
    Fault(
        "a removed row that waits to be written is a row again",
        "kvemb/tiers/spill.py",
        "exists[known] = self._block.flags[source] & REMOVED == 0",
        "exists[known] = True",
        ("tiers/test_spill.py",),
    ),
    Fault(
        "rows are added to a slot that is being written",
        "kvemb/tiers/spill.py",
        """        if begin + count == len(self._held):
            self._filled = self._slot_rows  # later rows go to another slot
""",
        "",
        ("tiers/test_spill.py",),
    ),
    Fault(
        "a row that waits twice is counted twice and its older copy stays",
        "kvemb/tiers/spill.py",
        "        self.discard(rows.keys)\n        if len(rows) > len(self._block)",
        "        if len(rows) > len(self._block)",
        ("tiers/test_spill.py",),
    ),
    Fault(
        "rows that moved during a cold read are not looked for again",
        "kvemb/tiers/locate.py",
        "        if self.version != search.version:\n            found = self._look(found.keys)\n",
        "",
        ("tiers/test_locate.py",),
    ),
    Fault(
        "a row read ahead outlives its change in the cold store",
        "kvemb/tiers/locate.py",
        "for fetch in (*self._reads, *self.ahead):\n            fetch.invalidate(keys)",
        "for fetch in self._reads:\n            fetch.invalidate(keys)",
        ("tiers/test_ahead.py", "tiers/test_storage.py"),
    ),
    Fault(
        "rows that a lookup left in flight are no move",
        "kvemb/tiers/locate.py",
        " + self._in_flight.moves + ",
        " + ",
        ("tiers/test_in_flight.py",),
    ),
    Fault(
        "a call that fails as it begins keeps the lock",
        "kvemb/tiers/access.py",
        "        except BaseException:\n            self.__exit__()\n            raise\n",
        "        except BaseException:\n            self._timed.__exit__()\n            raise\n",
        ("tiers/test_access.py",),
        hangs=True,
    ),
    Fault(
        "a row that changes during a checkpoint is not copied first",
        "kvemb/tiers/storage.py",
        "        self.snapshot.copy_before_change(found.keys, found.cells, found.owners)\n",
        "",
        ("durability/test_checkpoint.py", "durability/test_point_writer.py"),
    ),
    Fault(
        "a row that is evicted during a checkpoint is not in it",
        "kvemb/tiers/storage.py",
        "                for leaving in left:\n                    self.snapshot.copy_before_leaving(leaving)\n",
        "",
        ("durability/test_checkpoint.py",),
    ),
    Fault(
        "a removal is not in the log of writes",
        "kvemb/tiers/storage.py",
        "            self.log.removed(keys, self.step)\n",
        "",
        ("tiers/test_storage.py", "durability/test_journal.py"),
    ),
    Fault(
        "removed rows are still in flight",
        "kvemb/tiers/storage.py",
        "            self.in_flight.discard(keys)\n            self.log.removed",
        "            self.log.removed",
        ("tiers/test_in_flight.py",),
    ),
    Fault(
        "rows in flight stay there beside the hot ones",
        "kvemb/tiers/storage.py",
        "                    self.in_flight.discard(keys)\n                self.size",
        "                self.size",
        ("tiers/test_in_flight.py",),
    ),
    Fault(
        "a row that is hot again still waits to be written",
        "kvemb/tiers/storage.py",
        "                    self._spill.discard(keys)  # not before they are hot or in `left`\n",
        "",
        ("tiers/test_storage.py",),
    ),
    Fault(
        "one user of staging keeps the others out",
        "kvemb/memory/staging.py",
        "(self._free - held) // 2",
        "self._free",
        ("memory/test_staging.py",),
    ),
    Fault(
        "a table grows into what was given back for a reservation",
        "kvemb/memory/budget.py",
        "grows = nbytes <= self._free and not self._reserving",
        "grows = nbytes <= self._free",
        ("memory/test_budget.py",),
    ),
    Fault(
        "a row of a checkpoint overtakes a later one in the cold store",
        "kvemb/tiers/snapshot.py",
        "            self._growing.end_early()\n",
        "            pass\n",
        ("tiers/test_snapshot.py",),
    ),
    Fault(
        "a row that is evicted during a checkpoint is no longer dirty",
        "kvemb/tiers/snapshot.py",
        "        rows.flags &= ~SNAPSHOT_FLAGS\n",
        "        rows.flags[:] = 0\n",
        ("tiers/test_snapshot.py",),
    ),
    Fault(
        "copies of rows are limited by their number of batches",
        "kvemb/tiers/snapshot.py",
        "self._copied_rows += len(rows)",
        "self._copied_rows += 1",
        ("tiers/test_snapshot.py",),
    ),
    Fault(
        "a used row moves up whatever it evicts",
        "kvemb/tiers/host_tier.py",
        "rows.select(rows.scores > _min_score(device))",
        "rows",
        ("tiers/test_hot_tables.py",),
    ),
    # What survives.
    Fault(
        "a new CURRENT is not synced before it has its name",
        "kvemb/durability/fresh_files.py",
        "        file.flush()\n        os.fsync(file.fileno())\n",
        "        file.flush()\n",
        ("durability/test_durability.py",),
    ),
    Fault(
        "the name of a new CURRENT is not synced",
        "kvemb/durability/layout.py",
        "    os.replace(temporary, store / CURRENT)\n    fresh_files.sync_directory(store)\n",
        "    os.replace(temporary, store / CURRENT)\n",
        ("durability/test_durability.py",),
    ),
    Fault(
        "CURRENT is written in place",
        "kvemb/durability/layout.py",
        'temporary = store / (CURRENT + ".tmp")',
        "temporary = store / CURRENT",
        ("durability/test_durability.py",),
    ),
    Fault(
        "files of a point are hashed but not synced",
        "kvemb/durability/inventory.py",
        "        os.fsync(file.fileno())\n",
        "",
        ("durability/test_durability.py",),
    ),
    Fault(
        "a file that RocksDB writes to is linked",
        "kvemb/durability/layout.py",
        'if name.endswith((".sst", ".blob")):',
        'if not name.startswith("LOG"):',
        ("durability/test_layout.py",),
    ),
    Fault(
        "a checkpoint has its name before the store follows it",
        "kvemb/durability/point_writer.py",
        "            draft.sync()\n",
        "            draft.publish()\n",
        ("durability/test_point_writer.py", "durability/test_durability.py"),
    ),
    Fault(
        "rows that are hot when a checkpoint begins are missing in the delta",
        "kvemb/durability/point_writer.py",
        "            self._changes.add(epochs, part.name, snapshot.keys())\n",
        "            snapshot.keys()\n",
        ("durability/test_changes.py",),
    ),
    Fault(
        "what changed since a checkpoint begins an epoch too late",
        "kvemb/durability/epochs.py",
        "            return epochs[at:]\n",
        "            return epochs[at + 1 :]\n",
        ("durability/test_epochs.py", "durability/test_delta.py"),
    ),
    Fault(
        "keys recorded before a clear count after it",
        "kvemb/durability/changes.py",
        "            cleared, files = True, []\n",
        "            cleared = True\n",
        ("durability/test_epochs.py", "durability/test_changes.py"),
    ),
    Fault(
        "an epoch begins with the files of the one before",
        "kvemb/durability/changes.py",
        "files = [file for file in changed.files if file not in earlier.files]",
        "files = list(changed.files)",
        ("durability/test_changes.py",),
    ),
    Fault(
        "a removed row is missing in the delta",
        "kvemb/durability/delta.py",
        "removed = old_rows.select(gone)",
        "removed = RowBlock(schema, 0)",
        ("durability/test_delta.py",),
    ),
    Fault(
        "a row whose score alone changed is missing in the delta",
        "kvemb/durability/delta.py",
        "        & (rows.scores[new_index].view(np.uint64) == old.scores[old_index].view(np.uint64))\n",
        "",
        ("durability/test_delta.py",),
    ),
    Fault(
        "the digest of an attached file is not compared",
        "kvemb/durability/attachments.py",
        "        if digest != entry.sha256:\n",
        "        if len(digest) != len(entry.sha256):\n",
        ("durability/test_attachments.py",),
    ),
    Fault(
        "a commit does not sync the segment before",
        "kvemb/durability/journal.py",
        "for file in (*before, current):",
        "for file in (current,):",
        ("durability/test_journal.py", "durability/test_durability.py"),
    ),
    Fault(
        "entries count as synced before they are",
        "kvemb/durability/journal.py",
        "                noted = note(self._before, appended)\n",
        "                noted = note(self._before, appended)\n            self._synced = appended\n",
        ("durability/test_journal.py",),
    ),
    Fault(
        "the log after the durable point is deleted with that before it",
        "kvemb/durability/point_writer.py",
        "self._log.delete_before(self._number + 1 if self._last else self._number)",
        "self._log.delete_before(self._number + 1)",
        ("durability/test_point_writer.py", "durability/test_journal.py"),
    ),
    Fault(
        "replayed rows that existed are counted again",
        "kvemb/durability/recovery.py",
        "return -existing if removed else len(block) - existing",
        "return -existing if removed else len(block)",
        ("durability/test_recovery.py",),
    ),
    Fault(
        "two processes may write to a store",
        "kvemb/durability/layout.py",
        "    file.lock(fcntl.LOCK_EX, what.format(directory), advice)\n",
        "    file.lock(fcntl.LOCK_SH, what.format(directory), advice)\n",
        ("durability/test_layout.py", "durability/test_lock_file.py"),
    ),
    # Series and transfers of checkpoints.
    Fault(
        "a checkpoint is described at a URL before its files are there",
        "kvemb/offline/pushing.py",
        """            streams.move_all(send, sent, jobs)
            if plan.text is not None:
                self._publish(number, plan.text)
""",
        """            if plan.text is not None:
                self._publish(number, plan.text)
            streams.move_all(send, sent, jobs)
""",
        ("offline/test_transfer.py",),
    ),
    Fault(
        "deltas that a kept checkpoint needs are pruned",
        "kvemb/offline/pushing.py",
        "for sha256 in pushed[number].files}",
        "for sha256 in {file.sha256 for file in pushed[number].described.files.values()}}",
        ("offline/test_pushing.py",),
    ),
    Fault(
        "a file that was sent in part counts as sent",
        "kvemb/offline/pushing.py",
        "present = [entry for sha256, entry in files.items() if found.get(sha256) == entry.bytes]",
        "present = [entry for sha256, entry in files.items() if sha256 in found]",
        ("offline/test_transfer.py", "offline/test_pushing.py"),
    ),
    Fault(
        "a delta follows a checkpoint that lacks a file",
        "kvemb/offline/pushing.py",
        "if pushed.described.id in known and complete and",
        "if pushed.described.id in known and",
        ("offline/test_pushing.py",),
    ),
    Fault(
        "the digest of a received file is not compared",
        "kvemb/offline/streams.py",
        "return left == 0 and not file.read(1) and digest.hexdigest() == entry.sha256",
        "return left == 0 and not file.read(1)",
        ("offline/test_streams.py",),
    ),
    Fault(
        "a file is sent whole before its digest is compared",
        "kvemb/offline/streams.py",
        "        sound = _read(local, entry, send_previous)\n        if sound:\n",
        "        sound = _read(local, entry, send_previous)\n        if pending:\n",
        ("offline/test_streams.py", "offline/test_transfer.py"),
    ),
    Fault(
        "a cleared variable keeps the rows of earlier deltas",
        "kvemb/offline/applying.py",
        "            return at, False\n",
        "            return at, True\n",
        ("offline/test_applying.py",),
    ),
    Fault(
        "a removed row is missing in a delta file",
        "kvemb/offline/delta_file.py",
        "ordered[:0] if part.cleared else ordered[~exists]",
        "ordered[:0]",
        ("offline/test_delta_file.py", "offline/test_pushing.py"),
    ),
    Fault(
        "the first of equal keys wins a merge",
        "kvemb/offline/merging.py",
        'stays == "first" else np.append(differs, True)',
        'stays == "first" else np.insert(differs, 0, True)',
        ("offline/test_merging.py",),
    ),
    Fault(
        "a pull from an earlier checkpoint leaves out a delta",
        "kvemb/offline/transfer.py",
        "todo = pushed.deltas if begin is None else pushed.deltas[pushed.ids.index(begin.id) :]",
        "todo = pushed.deltas if begin is None else pushed.deltas[pushed.ids.index(begin.id) + 1 :]",
        ("offline/test_pushing.py",),
    ),
    Fault(
        "a checkpoint that the store does not follow gets its name",
        "kvemb/offline/leftovers.py",
        "        if described.id not in followed:\n            return False\n",
        "",
        ("offline/test_leftovers.py",),
    ),
    Fault(
        "a save keeps one checkpoint less than asked for",
        "kvemb/offline/numbered.py",
        "for number in own[: -self.keep]:",
        "for number in own[: 1 - self.keep or None]:",
        ("offline/test_series.py",),
    ),
    Fault(
        "keys loaded before a checkpoint are missing in the next delta",
        "kvemb/offline/loading.py",
        "                files.record_again()  # a checkpoint without these rows took the keys recorded so far\n",
        "                pass\n",
        ("offline/test_table_files.py", "offline/test_loading.py"),
    ),
    Fault(
        "resume deletes a store of another series",
        "kvemb/offline/resuming.py",
        "    if newest is not None and found.store != inside(newest).store:\n",
        "    if newest is not None and not found.store:\n",
        ("offline/test_resuming.py",),
    ),
    Fault(
        "a run of sorted rows goes on with a smaller key",
        "kvemb/offline/sorter.py",
        'if not self._runs or int(rows["key"][0]) <= self._last:',
        "if not self._runs:",
        ("offline/test_sorter.py",),
        hangs=True,
    ),
    # Shards.
    Fault(
        "a call that arrives again after its answer is executed again",
        "kvemb/cluster/ledger.py",
        "return stamp.number < self.answered or stamp.number in self.made",
        "return stamp.number in self.made",
        ("cluster/test_ledger.py",),
    ),
    Fault(
        "a cut does not wait for calls that are being executed",
        "kvemb/cluster/ledger.py",
        "        wait(running)\n",
        "        wait(running, 0)\n",
        ("cluster/test_ledger.py",),
    ),
    Fault(
        "a late end of an earlier cut opens the gate",
        "kvemb/cluster/ledger.py",
        "            if self._cut is not None and self._cut <= cut:\n                self._cut = None\n",
        "            self._cut = None\n",
        ("cluster/test_ledger.py", "cluster/coordination/test_cuts.py"),
    ),
    Fault(
        "a late beginning of an earlier cut closes the gate",
        "kvemb/cluster/ledger.py",
        "            if cut > self._ended and cut != self._cut:\n",
        "            if cut != self._cut:\n",
        ("cluster/coordination/test_cuts.py",),
    ),
    Fault(
        "the gates open before the work of the cut",
        "kvemb/cluster/coordination/cuts.py",
        "calls.client), absent_seconds)\n        yield\n",
        'calls.client), absent_seconds)\n        calls.all("release", number)\n        yield\n',
        ("cluster/coordination/test_cuts.py", "cluster/coordination/test_coordinator.py"),
    ),
    Fault(
        "the rest of a call is not admitted to the last shard",
        "kvemb/cluster/coordination/cuts.py",
        "            for shard in range(len(made)):\n                if without",
        "            for shard in range(len(made) - 1):\n                if without",
        ("cluster/coordination/test_cuts.py",),
    ),
    Fault(
        "steps that a client sends twice count twice",
        "kvemb/cluster/coordination/counting.py",
        "self._clients[client] = own.up_to(self._clients.get(client, StepCounts()))",
        "self._clients[client] = own.plus(self._clients.get(client, StepCounts()))",
        ("cluster/coordination/test_counting.py",),
    ),
    Fault(
        "a coordinator publishes after it has lost its lease",
        "kvemb/cluster/durability/checkpointing.py",
        "        if isinstance(self._lock, Lease):\n            self.series.check(self._lock)\n",
        "",
        ("cluster/coordination/test_lease.py",),
    ),
    Fault(
        "a closed cluster's newest checkpoint counts as up to date",
        "kvemb/cluster/durability/checkpointing.py",
        "if changes == self._changes and not steps:",
        "if self._changes is not None and not steps:",
        ("cluster/durability/test_checkpointing.py",),
    ),
    Fault(
        "calls that a checkpoint has are executed again after a recovery",
        "kvemb/cluster/ledger.py",
        "joined[client] = max(before, answered), known.union(numbers)",
        "joined[client] = before, known",
        ("cluster/test_ledger.py",),
    ),
    Fault(
        "files of a shard that a kept checkpoint needs are pruned",
        "kvemb/cluster/durability/series.py",
        "of_shard.prune(sum(number >= first[store] for number in of_shard.numbers()), store)",
        "of_shard.prune(1, store)",
        ("cluster/durability/test_checkpointing.py",),
    ),
    Fault(
        "a new shard is written before it has all its rows",
        "kvemb/cluster/durability/resharding.py",
        "if last <= shard.last:",
        "if first <= shard.last:",
        ("cluster/durability/test_resharding.py",),
    ),
    Fault(
        "changes between two checkpoints include those after them",
        "kvemb/cluster/durability/epochs.py",
        "return epochs if later is None else epochs[: len(epochs) - len(later)]",
        "return epochs",
        ("cluster/durability/test_epochs.py",),
    ),
    Fault(
        "a batch of a scan that is asked for again is the next one",
        "kvemb/cluster/scans.py",
        "            if number == self._given:\n",
        "            if number <= self._given:\n",
        ("cluster/test_calls.py", "cluster/coordination/test_coordinator.py"),
    ),
    Fault(
        "keys of an array that the caller changed go to the shards of the old ones",
        "kvemb/cluster/router.py",
        "            keys = keys.copy()  # the caller may change them, and the grouping may refer to this array\n",
        "            pass\n",
        ("cluster/test_router.py",),
    ),
    Fault(
        "a client's variable is another one after a recovery",
        "kvemb/cluster/session.py",
        "if told is not None and are_of_one_variable(opened.token, told.token):",
        "if told is not None:",
        ("cluster/coordination/test_recovery.py",),
    ),
    Fault(
        "a client that missed a recovery saves a checkpoint",
        "kvemb/cluster/coordination/coordinator.py",
        "        if own.generation != self._generation:\n            return {}",
        "        if own.generation > self._generation:\n            return {}",
        ("cluster/coordination/test_recovery.py", "cluster/test_session.py", "cluster/coordination/test_counting.py"),
    ),
    Fault(
        "ranks beyond the rows that are alive are kept",
        "kvemb/cluster/coordination/restricting.py",
        "        keep = min(keep_rows, alive)\n",
        "        keep = keep_rows\n",
        ("cluster/coordination/test_restricting.py",),
    ),
]
