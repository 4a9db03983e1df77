"""`kvemb bench export`: export to Parquet and import, compared with the same written by hand, and the peak memory.

By hand means: iterate over the store and write each batch with pyarrow; read the file, upsert each batch, flush. Run as
a module with a command as JSON, this file exports or imports in a separate process and prints its peak memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import kvemb
from kvemb import bulk
from kvemb.tools.bench.data import batches_of_ids, values_of
from kvemb.tools.bench.measure import compile_seconds, scratch, take_turns
from kvemb.tools.bench.results import Comparison, Report, Spread, compare
from kvemb.tools.destinations import remove
from kvemb.tools.export import export
from kvemb.tools.importing import BUDGET, import_table
from kvemb.tools.memory import peak_bytes

LOAD_BATCH = 65_536
MIN_EXPORT, MIN_IMPORT, MAX_MB = 0.8, 3.0, 500.0


def run(rows: int, dim: int, runs: int, folder: Path | None) -> Report:
    """Export and import a table of this size, in turns with the code written by hand."""
    report = Report("export", {"rows": rows, "dim": dim, "runs": runs})
    report.facts["compile_s"] = compile_seconds(dim)
    with scratch(folder) as folder_path:
        made, file = folder_path / "made", folder_path / "table.parquet"
        with kvemb.open(folder_path / "store", memory_budget="256MiB") as store:
            bulk.load(store.get_variable("table", dim=dim), _rows(rows, dim))
            store.checkpoint(made)
        out, hand, into = folder_path / "ours.parquet", folder_path / "hand.parquet", folder_path / "in"
        ours, theirs = take_turns((lambda _: _export(made, out), lambda _: _export_by_hand(made, hand)), runs, rows)
        report.lines.append(compare("export to Parquet", "rows/s", ours, "pyarrow by hand", theirs, MIN_EXPORT))
        _export(made, file)
        ours, theirs = take_turns((lambda _: _import(file, into), lambda _: _upsert(file, into)), runs, rows)
        report.lines.append(compare("import of Parquet", "rows/s", ours, "upsert in batches", theirs, MIN_IMPORT))
        for what, arguments in (
            ("export", [made, folder_path / "out.parquet"]),
            ("import", [file, folder_path / "imported"]),
        ):
            report.lines.append(_peak(what, arguments))
    return report


def _rows(rows: int, dim: int) -> Iterator[bulk.Rows]:
    for ids in batches_of_ids(rows, LOAD_BATCH):
        yield bulk.Rows(ids, values_of(ids, dim))


def _export(made: Path, out: Path) -> None:
    remove(out)
    export(made, out)


def _export_by_hand(made: Path, out: Path) -> None:
    with kvemb.open(made, read_only=True, memory_budget="32MiB") as store:
        table = store.variables["table"]
        schema = pa.schema([("key", pa.int64()), ("value", pa.list_(pa.float32(), table.dim))])
        with pq.ParquetWriter(out, schema) as writer:
            for keys, values in table.export_batches(LOAD_BATCH):
                lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), table.dim)
                writer.write_table(pa.table([pa.array(keys), lists], schema=schema))


def _import(file: Path, path: Path) -> None:
    remove(path)
    import_table(file, path, variable="table")


def _upsert(file: Path, path: Path) -> None:
    remove(path)
    with kvemb.open(path, memory_budget=BUDGET) as store:
        reader = pq.ParquetFile(file)
        table: kvemb.Variable | None = None
        for batch in reader.iter_batches(LOAD_BATCH):
            lists = batch.column("value")
            if table is None:
                table = store.get_variable("table", dim=lists.type.list_size)
            table.upsert(batch.column("key").to_numpy(), lists.flatten().to_numpy().reshape(len(batch), -1))


def _peak(what: str, arguments: list[Path]) -> Comparison:
    command = [sys.executable, "-P", "-m", "kvemb.tools.bench.export", json.dumps([what, *map(str, arguments)])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    peak = Spread.of([json.loads(done.stdout) / 1e6])
    return Comparison(f"peak memory of {what}", "MB", peak, bar=f"≤ {MAX_MB:g}", met=peak.median <= MAX_MB)


if __name__ == "__main__":
    what, first, second = json.loads(sys.argv[1])
    if what == "export":
        export(first, second)
    else:
        import_table(first, second, variable="table")
    print(json.dumps(peak_bytes()))
