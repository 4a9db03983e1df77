"""Functions on epochs: what changed between two of a store's points, and key files that move to a later epoch.

A point links the key files of all its epochs, so files of past ones are joined. Nothing is missed: a reader that asks
what changed since a checkpoint reads all epochs from there on. But an epoch may then name keys that changed before it.
Files never move past an epoch in which their variable was cleared or dropped: a later one of that name may have keys of
another dtype. Stateless; all files are read by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from kvemb.durability.manifest import Epoch, EpochChanges


def since(epochs: list[Epoch], checkpoint: str) -> list[Epoch] | None:
    """Return the epochs from a checkpoint on, None if it is unknown or its epoch was deleted."""
    for at, epoch in enumerate(epochs):
        if epoch.since == checkpoint:
            return epochs[at:]
    return None


def dropped_variables(epochs: list[Epoch]) -> set[str]:
    """Return the names of the variables dropped in these epochs; some may have been created again since."""
    return {name for epoch in epochs for name, changed in epoch.variables.items() if changed.dropped}


def variables_dropped_between(earlier: list[Epoch], later: list[Epoch]) -> set[str] | None:
    """Return the names of the variables dropped between two durable points of a store, given the epochs of each.

    Those that left the checkpoints are still there. None if the later point does not say: its epochs do not reach back
    to the earlier one.
    """
    between = since(later, earlier[-1].since)
    return None if between is None else (_gone(between[:1]) - _gone(earlier[-1:])) | _gone(between[1:])


def _gone(epochs: list[Epoch]) -> set[str]:
    named = (item for epoch in epochs for item in epoch.variables.items())
    return {name for name, changed in named if changed.dropped and not changed.left}


def files_between(earlier: list[Epoch], later: list[Epoch], variable: str) -> list[str] | None:
    """Return the key files that have all keys of a variable that changed between two durable points of a store.

    earlier, later: the epochs of each point. None if the later one does not say: its epochs do not reach back, or the
    variable was cleared.
    """
    between = since(later, earlier[-1].since)
    if between is None:
        return None
    known = earlier[-1].variables.get(variable, EpochChanges()).files
    changes = [epoch.variables[variable] for epoch in between if variable in epoch.variables]
    if any(changed.cleared or changed.dropped for changed in changes):
        return None
    files = [file for changed in changes for file in changed.files]
    # A file that is listed before a known one was joined of known ones.
    first = max((at + 1 for at, file in enumerate(files) if file in known), default=0)
    return list(dict.fromkeys(files[first:]))


def files_of(epochs: list[Epoch]) -> set[str]:
    """The names of all key files of epochs."""
    return {file for epoch in epochs for changed in epoch.variables.values() for file in changed.files}


def join_files(old: list[Epoch], most: int, nbytes: Callable[[str], int], join: Callable[[list[str]], str]) -> set[str]:
    """Join files until these epochs have about `most`, the same number for each variable, and at least one.

    Returns the names of the files that are no longer needed. nbytes: of a file. join: writes a file with the keys of
    others, and returns its name. The two neighbouring epochs with the fewest bytes are joined: the later one gets all
    files. So a key is written again only when its file grows considerably. Files of cleared variables are not joined.
    """
    gone: set[str] = set()
    names = sorted({name for epoch in old for name in epoch.variables})
    share = max(1, most // max(1, len(names)))
    for name in names:
        listed = [epoch.variables[name] for epoch in old if name in epoch.variables]
        for at, changed in enumerate(listed):
            if any(later.cleared for later in listed[at + 1 :]):
                gone.update(changed.files)  # of rows that are there no more
                changed.files = []
        while sum(len(changed.files) for changed in listed) > share and (pair := _cheapest(listed, nbytes)):
            first, second = pair
            files = [*first.files, *second.files]
            first.files, second.files = [], [join(files)]
            gone.update(files)
            if not first.cleared:
                listed = [changed for changed in listed if changed is not first]
    for epoch in old:
        epoch.variables = {name: each for name, each in epoch.variables.items() if each.files or each.cleared}
    return gone


def _cheapest(listed: list[EpochChanges], nbytes: Callable[[str], int]) -> tuple[EpochChanges, EpochChanges] | None:
    """Return the two neighbours with the fewest bytes that can be joined, the earlier one first."""
    sizes = [sum(map(nbytes, changed.files)) for changed in listed]
    pairs = [at for at in range(len(listed) - 1) if sizes[at] and listed[at + 1].files and not listed[at + 1].cleared]
    if not pairs:
        return None
    at = min(pairs, key=lambda at: sizes[at] + sizes[at + 1])
    return listed[at], listed[at + 1]


def common_checkpoint(there: list[Epoch], here: list[Epoch]) -> tuple[str, list[str]] | None:
    """Return the last checkpoint that a store shares with another store's, and those that the other one follows since.

    there: the epochs of the other store's checkpoint. here: the store's. Returns None if they share none, or if this
    store was restored from, or brought to, a later one that the other does not follow: rows that changed only there
    would stay among the rows of the other. A copy of a replica may follow what the replica follows.
    """
    followed, restored = [epoch.since for epoch in there], False
    for epoch in reversed(here):
        if epoch.since in followed:
            between = followed[followed.index(epoch.since) + 1 :]
            return None if restored and not epoch.includes else (epoch.since, between)
        if epoch.includes:
            return None
        restored |= epoch.includes is not None
    return None


def take_over(epochs: list[Epoch], includes: list[str], cleared: Collection[str], names: Collection[str]) -> Epoch:
    """Return an epoch that begins with a checkpoint of another store, which was made equal to it after these epochs.

    It gets their files: it has all keys that changed here, and those that changed there, in one place however many
    checkpoints follow. includes: its id, after those of the checkpoints that were passed. cleared: variables that were
    cleared or dropped here. names: of the existing variables.
    """
    own = Epoch(includes[-1], includes=includes)
    for epoch in epochs:
        for name, changed in epoch.variables.items():
            total = own.variables.setdefault(name, EpochChanges(name in cleared))
            total.dropped |= changed.dropped and total.cleared and name not in names
            total.files = ([] if changed.cleared else total.files) + changed.files
            changed.files = []
    own.variables = {name: each for name, each in own.variables.items() if each.files or each.cleared}
    return own
