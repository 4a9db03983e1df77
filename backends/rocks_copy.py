"""Changes to a copy of a database: families are dropped, and sorted files ingested. It is also a program.

rocksdict holds the GIL while it opens a database, half a millisecond for each family. So another process opens a copy
with many families (rocks_amending). It runs this file, which imports only rocksdict and the standard library, so that
it starts in 10 ms.

The program reads one JSON list a line: ["drop", name] or ["ingest", name, path], and then ["end"]. It writes a line of
JSON when the copy is open, {"opened": true}, and one at the end: {"done": true}, or {"failed": text}. If its input ends
earlier, as the process that started it did, it ends at once.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

# The most files that the database keeps open. By default RocksDB opens all of them together with the database.
FEW_FILES = 50
Step = list[str]


def amend(path: Path, steps: Iterable[Step]) -> None:
    """Open the copy, take the steps, and close it. A file is moved. Raises what rocksdict does, plain Exceptions.

    The first step is taken from `steps` when the copy is open. Compaction is off: a copy does not need it.
    """
    import rocksdict as rd

    def options() -> rd.Options:
        made = rd.Options(raw_mode=True)
        made.create_if_missing(False)
        made.set_compaction_style(rd.DBCompactionStyle.universal())
        made.set_disable_auto_compactions(True)
        made.set_max_open_files(FEW_FILES)
        made.set_allow_mmap_reads(True)
        made.set_skip_stats_update_on_db_open(True)
        made.set_stats_dump_period_sec(0)
        return made

    moving = rd.IngestExternalFileOptions()
    moving.set_move_files(True)
    found = [name for name in rd.Rdict.list_cf(str(path)) if name != "default"]
    opened = rd.Rdict(str(path), options(), {name: options() for name in found}, rd.AccessType.read_write())
    family: rd.Rdict | None = None
    try:
        for kind, name, *files in steps:
            if kind == "drop":
                opened.drop_column_family(name)
            else:
                family = opened.get_column_family(name)
                family.ingest_external_file(files, moving)
    finally:
        family = None  # a remaining handle keeps the database open
        with suppress(Exception):  # after a failed write RocksDB fails here again
            opened.close()
        del opened


def _steps() -> Iterator[Step]:
    """Yield the steps that are read, up to the end."""
    _tell({"opened": True})
    for line in sys.stdin:
        step = json.loads(line)
        if step == ["end"]:
            return
        yield step
    os._exit(1)


def _tell(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    """Amend the copy at the first argument. rocksdict is in the folder that is the second."""
    path, packages = sys.argv[1:]
    sys.path.append(packages)
    try:
        amend(Path(path), _steps())
    except ImportError:
        raise  # nothing has changed, and nothing is told: the caller amends the copy itself
    except Exception as error:
        _tell({"failed": str(error)[:4096]})
        sys.exit(1)
    _tell({"done": True})


if __name__ == "__main__":
    main()
