"""Tables of TFRA in a checkpoint of TensorFlow: object-based (tf.train.Checkpoint, Keras, SavedModel) or name-based.

A table has the tensors STEM-keys and STEM-values. In an object-based checkpoint STEM is
.../tables_of_NAME/SHARD/.ATTRIBUTES/table, and the object graph says how many shards there are; in a name-based one it
is .../NAME_mht_SHARDofSHARDS, with _ for each / of NAME. Slots are tables called NAME/OPERATION/SLOT or NAME/SLOT.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.columns import (
    KEY,
    SLOTLESS,
    VALUE,
    Batch,
    Column,
    Read,
    SourceOptions,
    Table,
    check_width,
    slices,
)
from kvemb.tools.formats.raw import companions, main_tables
from kvemb.tools.formats.tensor_bundle import STRING, Bundle, message

_OF_OBJECTS = re.compile(r"(?P<path>(?:.*/)?tables_of_(?P<name>[^/]+))/(?P<shard>\d+)/\.ATTRIBUTES/table")
_OF_NAMES = re.compile(r"(?P<path>(?:.*/)?(?P<name>[^/]+)_mht_)(?P<shard>\d+)of(?P<shards>\d+)(?:_\d+)?")
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Of an optimizer's steps, in the checkpoints of Keras' optimizers, of either kind.
_ITERATIONS = re.compile(r"(?:.*/)?(?:_?iter(?:ations)?)(?:/\.ATTRIBUTES/VARIABLE_VALUE)?")
# kvemb's slots, by those of TensorFlow and the optimizer that has them. Keras' momentum has the learning rate inside.
_SLOTS = {
    "m": (("m", ""),),
    "v": (("v", ""), ("rms", ""), ("accum_grad", "")),
    "v_max": (("vhat", ""),),
    "u": (("v", "adamax"), ("accum_var", "")),
    "accumulator": (("accumulator", ""), ("accum", "")),
    "linear": (("linear", ""),),
    "velocity": (("momentum", "momentum"),),
}


@dataclass
class _Found:
    """A table: its name, and the stems of its tensors by the numbers of its shards."""

    name: str
    stems: dict[int, str] = field(default_factory=dict)
    expected: set[int] = field(default_factory=set)


def read_tf_checkpoint(source: Path, given: SourceOptions) -> tuple[Table, Read]:
    """Read a table of TFRA with its slots.

    source: the prefix of a checkpoint, one of its files, a folder with a checkpoint, or a SavedModel.
    """
    bundle = Bundle(_prefix(source))
    found = _tables(bundle)
    table = found[_chosen(bundle, found, given)]
    parts = _parts(bundle, table)
    width = {part[VALUE].shape[1] for part in parts}
    if len(width) > 1:
        raise BadInput(
            f"{bundle.prefix} has shards of {table.name!r} whose rows have {min(width)} and {max(width)} values"
        )
    slots = {name: _Slot(_parts(bundle, found[path])) for name, path in _slots_of(table, found).items()}
    slots = {name: slot for name, slot in slots.items() if {slot.width} == width}
    columns = [
        Column(KEY, parts[0][KEY].dtype),
        Column(VALUE, parts[0][VALUE].dtype, check_width(width.pop(), bundle.prefix)),
        *(Column(name, slot.dtype, slot.width) for name, slot in slots.items()),
    ]
    metadata: dict[str, Any] = {"name": table.name}
    if (steps := _steps(bundle)) is not None and slots:
        columns.append(Column("steps", np.dtype(np.float32), 1))
        metadata["optimizer_steps"] = steps
    row_bytes = sum(column.nbytes for column in columns)

    def read(wanted: Collection[str]) -> Iterator[Batch]:
        reading = {name: slot for name, slot in slots.items() if name in wanted}
        for part in parts:
            for rows in slices(len(part[KEY]), row_bytes):
                keys = np.array(part[KEY][rows])
                batch: Batch = {KEY: _words(keys) if keys.dtype == object else keys, VALUE: np.array(part[VALUE][rows])}
                at = {name: slot.places(keys) for name, slot in reading.items()}
                batch |= {name: slot.rows(at[name]) for name, slot in reading.items()}
                if "steps" in wanted and steps is not None:
                    batch["steps"] = np.full((len(keys), 1), steps, np.float32)
                if at:
                    batch[SLOTLESS] = np.any([places < 0 for places in at.values()], axis=0)
                yield batch

    return Table(columns, sum(len(part[KEY]) for part in parts), metadata), read


def _prefix(source: Path) -> Path:
    """Return the prefix of the names of a checkpoint's files. Raises BadInput, WrongUsage."""
    if not source.is_dir():
        name = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", source.name)
        return source.with_name(name)
    latest = source / "checkpoint"
    if latest.is_file():
        said = re.search(r'^model_checkpoint_path: "(.+)"$', latest.read_text(encoding="utf-8"), re.MULTILINE)
        if said:
            return source / said[1]
    if (source / "variables" / "variables.index").is_file():
        return source / "variables" / "variables"
    found = sorted(source.glob("*.index"))
    if not found:
        raise BadInput(f"{source} has no checkpoint of TensorFlow: there is no file called checkpoint or *.index")
    if len(found) > 1:
        raise WrongUsage(f"{source} has several checkpoints: name one, such as {found[-1]}")
    return found[0].with_suffix("")


def _tables(bundle: Bundle) -> dict[str, _Found]:
    """Return the tables by the paths of their tensors. Raises BadInput."""
    found: dict[str, _Found] = {}
    stems = {name.removesuffix("-keys") for name in bundle.entries if name.endswith("-keys")}
    for stem in sorted(stems | set(_attributes(bundle))):
        if match := _OF_OBJECTS.fullmatch(stem):
            table = found.setdefault(match["path"], _Found(_unescaped(match["name"])))
            table.expected |= set(range(int(match["shard"]) + 1))
        elif match := _OF_NAMES.fullmatch(stem):
            table = found.setdefault(match["path"], _Found(match["name"]))
            table.expected |= set(range(1, int(match["shards"]) + 1))
        else:
            continue
        table.stems[int(match["shard"])] = stem
    return found


def _check_whole(bundle: Bundle, table: _Found) -> None:
    """Raise BadInput if parts of a table are missing."""
    shards = [f"shard {shard}" for shard in sorted(table.expected - set(table.stems))]
    tensors = [f"{stem}-{what}" for stem in table.stems.values() for what in ("keys", "values")]
    if lacking := [*shards, *(name for name in tensors if name not in bundle.entries)]:
        raise BadInput(
            f"{bundle.prefix} lacks parts of the table {table.name!r}: {', '.join(lacking[:4])}; get the whole "
            "checkpoint"
        )


def _attributes(bundle: Bundle) -> Iterator[str]:
    """Yield the keys of the tables in the object graph, if there is one."""
    if _GRAPH not in bundle.entries:
        return
    try:
        for _, node in message(bundle.strings(_GRAPH)[0]):
            for number, part in message(node):
                if number == 2:
                    said = dict(message(part))
                    if said.get(1) == b"table":
                        yield said[3].decode()
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{bundle.prefix} has an object graph that cannot be read: {error}") from error


def _unescaped(text: str) -> str:
    return re.sub(r"\.(\.|S)", lambda match: "." if match[1] == "." else "/", text)


def _chosen(bundle: Bundle, found: dict[str, _Found], given: SourceOptions) -> str:
    """Return the path of the table that is named, or of the only one. Raises BadInput, WrongUsage."""
    if not found:
        advice = "no table of TFRA"
        if any("-prev_global_shard_num" in name for name in bundle.entries):
            advice += (
                "; its tables were written by a FileSystemSaver: kvemb import --format tfra reads the folder "
                "TFRADynamicEmbedding beside it"
            )
        raise BadInput(f"{bundle.prefix} has {advice}")
    names = sorted({table.name for table in found.values()})
    if given.variable is not None:
        wanted = {given.variable, given.variable.replace("/", "_")}
        paths = [path for path, table in found.items() if table.name in wanted]
        if not paths:
            raise WrongUsage(f"{bundle.prefix} has no table {given.variable!r}; it has {', '.join(names)}")
    else:
        flat = {path: table.name.replace("/", "_") for path, table in found.items()}
        sizes = {flat[path]: _nbytes(bundle, table) for path, table in found.items()}
        main = main_tables(sizes)
        paths = [path for path in found if flat[path] in main]
        if len(main) != 1:
            told = sorted(found[path].name for path in paths) or names
            raise WrongUsage(f"{bundle.prefix} has the tables {', '.join(told)}; name one: --variable {told[0]}")
    if len(paths) > 1:
        raise WrongUsage(f"{bundle.prefix} has several tables called {found[paths[0]].name!r}: {', '.join(paths)}")
    return paths[0]


def _nbytes(bundle: Bundle, table: _Found) -> tuple[int, int]:
    def nbytes(what: str) -> int:
        found = (bundle.entries.get(f"{stem}-{what}") for stem in table.stems.values())
        return sum(entry.size for entry in found if entry is not None)

    return nbytes("keys"), nbytes("values")


def _slots_of(table: _Found, found: dict[str, _Found]) -> dict[str, str]:
    """Return the paths of a table's slots, by kvemb's names of slots."""
    name = table.name.replace("/", "_")
    slot, _ = companions(name)
    there: dict[str, str] = {}
    for path, each in found.items():
        rest = each.name.replace("/", "_")
        if not slot.fullmatch(rest):
            continue
        rest = rest.removeprefix(f"{name}_").lower()
        for ours, theirs in _SLOTS.items():
            for called, operation in theirs:
                if (rest == called or rest.endswith(f"_{called}")) and operation in rest.removesuffix(called):
                    if ours in there and there[ours] != path:
                        raise BadInput(
                            f"the table {table.name!r} has the slots of several optimizers, {found[there[ours]].name} "
                            f"and {each.name}; save the one that is used"
                        )
                    there[ours] = path
    return there


def _parts(bundle: Bundle, table: _Found) -> list[Batch]:
    """Return the shards of a table: keys (n,) and values (n, width). Raises BadInput."""
    _check_whole(bundle, table)
    parts = []
    for _, stem in sorted(table.stems.items()):
        entry = bundle.entries[f"{stem}-keys"]
        keys = (
            np.array(bundle.strings(f"{stem}-keys"), object) if entry.dtype == STRING else bundle.array(f"{stem}-keys")
        )
        values = bundle.array(f"{stem}-values")
        if values.ndim == 1:
            values = values.reshape(len(values), 1)
        if values.ndim != 2 or len(keys) != len(values):
            raise BadInput(f"{stem} of {bundle.prefix} has {len(keys):,} keys, and values of the shape {values.shape}")
        parts.append({KEY: keys, VALUE: values})
    return parts


def _words(keys: Any) -> Any:
    """Return keys that are bytes as an Arrow array of words."""
    import pyarrow as pa

    try:
        return pa.array([key.decode() for key in keys], pa.large_string())
    except UnicodeDecodeError as error:
        raise BadInput(f"a key is no text in UTF-8: {error.object!r}; keys of strings must be") from error


class _Slot:
    """The rows of a slot's table, in all shards, to be found by key."""

    def __init__(self, parts: list[Batch]) -> None:
        keys = np.concatenate([part[KEY] for part in parts])
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._values = [part[VALUE] for part in parts]
        self._ends = np.cumsum([len(part[KEY]) for part in parts])
        self.dtype: np.dtype[Any] = np.dtype(np.float64 if self._values[0].dtype == np.float64 else np.float32)
        self.width: int = self._values[0].shape[1]

    def places(self, keys: Any) -> Any:
        """Return where the rows of keys are, int64 (n,); -1 for those that have none."""
        if not len(self._keys):
            return np.full(len(keys), -1)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._order[at], -1)

    def rows(self, places: Any) -> Any:
        """Return the rows at places (n, width); zeros for -1."""
        out = np.zeros((len(places), self.width), self.dtype)
        begin = 0
        for values, end in zip(self._values, self._ends, strict=True):
            here = (places >= begin) & (places < end)
            out[here] = values[places[here] - begin]
            begin = end
        return out


def _steps(bundle: Bundle) -> int | None:
    """Return how many steps the optimizer took, if the checkpoint says so."""
    names = [name for name, entry in bundle.entries.items() if _ITERATIONS.fullmatch(name) and not entry.shape]
    counts = {int(bundle.array(name)[()]) for name in names if bundle.entries[name].dtype in (3, 9)}
    return counts.pop() if len(counts) == 1 else None
