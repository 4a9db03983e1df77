"""`kvemb bench export`: export to Parquet and import, compared with the same written by hand, and the peak memory.

By hand means: iterate over the store and write each batch with pyarrow; read the file, upsert each batch, flush.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import kvemb
from kvemb import bulk
from kvemb.tools.bench.data import batches_of_ids, values_of
from kvemb.tools.bench.measure import measure_alternately, scratch
from kvemb.tools.bench.options import Dim, Folder, Rows, Runs
from kvemb.tools.bench.processes import result_of
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import LOAD_BATCH
from kvemb.tools.destinations import remove
from kvemb.tools.process_memory import peak_bytes

MIN_EXPORT, MIN_IMPORT, MAX_MB = 0.8, 3.0, 500.0


def run(rows: Rows = 10_000_000, dim: Dim = 32, runs: Runs = 3, folder: Folder = None) -> Report:
    """Export to Parquet and import again: speed and peak memory. Peer: code written by hand with pyarrow."""
    report = Report()
    with scratch(folder) as place:
        made, file, into = place / "made", place / "table.parquet", place / "in"
        with kvemb.open(place / "store", memory_budget="256MiB") as store:
            bulk.load(store.get_variable("table", dim=dim), _rows(rows, dim))
            store.checkpoint(made)
        exports = lambda _: _export(made, file), lambda _: _export_by_hand(made, place / "hand.parquet")
        imports = lambda _: _import(file, into), lambda _: _upsert(file, into)
        for name, sides, peer, least in (
            ("export to Parquet", exports, "pyarrow by hand", MIN_EXPORT),
            ("import of Parquet", imports, "upsert in batches", MIN_IMPORT),
        ):
            ours, theirs = ([rows / each.wall for each in side] for side in measure_alternately(sides, runs))
            report.lines.append(compare(name, "rows/s", ours, peer, theirs).ratio_at_least(least))
        for what, source, target in (("export", made, place / "out.parquet"), ("import", file, place / "imported")):
            peak = result_of(__name__, "peak_of", what=what, source=str(source), target=str(target)) / 1e6
            report.lines.append(compare(f"peak memory of {what}", "MB", [peak]).at_most(MAX_MB))
    return report


def _rows(rows: int, dim: int) -> Iterator[bulk.Rows]:
    for ids in batches_of_ids(rows, LOAD_BATCH):
        yield bulk.Rows(ids, values_of(ids, dim))


def _export(made: Path, out: Path) -> None:
    from kvemb.tools.export import export

    remove(out)
    export(made, out)


def _export_by_hand(made: Path, out: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with kvemb.open(made, read_only=True, memory_budget="32MiB") as store:
        table = store.variables["table"]
        schema = pa.schema([("key", pa.int64()), ("value", pa.list_(pa.float32(), table.dim))])
        with pq.ParquetWriter(out, schema) as writer:
            for keys, values in table.export_batches(LOAD_BATCH):
                lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), table.dim)
                writer.write_table(pa.table([pa.array(keys), lists], schema=schema))


def _import(file: Path, path: Path) -> None:
    from kvemb.tools.importing import import_table

    remove(path)
    import_table(file, path, variable="table")


def _upsert(file: Path, path: Path) -> None:
    import pyarrow.parquet as pq

    from kvemb.tools.reading import WRITE_BUDGET

    remove(path)
    with kvemb.open(path, memory_budget=WRITE_BUDGET) as store:
        reader = pq.ParquetFile(file)
        table: kvemb.Variable | None = None
        for batch in reader.iter_batches(LOAD_BATCH):
            lists = batch.column("value")
            if table is None:
                table = store.get_variable("table", dim=lists.type.list_size)
            table.upsert(batch.column("key").to_numpy(), lists.flatten().to_numpy().reshape(len(batch), -1))


def peak_of(what: str, source: str, target: str) -> int:
    """Export or import in this process; return its peak memory in bytes."""
    (_export if what == "export" else _import)(Path(source), Path(target))
    return peak_bytes()
