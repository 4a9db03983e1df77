"""rocksdict-config.json, which rocksdict keeps beside RocksDB's files: what kvemb has it say (FORMAT.md, "Rows")."""

from __future__ import annotations

import json
from pathlib import Path

from kvemb.checks.brief import brief
from kvemb.errors import Corruption

NAME = "rocksdict-config.json"
# What is read of it: many times what it has.
_MOST_BYTES = 4096
_EXPECTED = {"raw_mode": True, "prefix_extractors": {}}


def check_config(rows: Path) -> None:
    """Raise Corruption where rocksdict's file is there and says that keys or values are other than raw bytes."""
    path = rows / NAME
    try:
        with open(path, "rb") as file:
            said = json.loads(file.read(_MOST_BYTES))
    except FileNotFoundError:
        return  # rocksdict makes one
    except (ValueError, RecursionError) as error:
        raise Corruption(f"{path} is damaged: {error!r}; restore from another checkpoint") from error
    # JSON's true is no 1.
    if said != _EXPECTED or said["raw_mode"] is not True:
        raise Corruption(
            f"{path} is damaged: it must be {json.dumps(_EXPECTED)}, got {brief(said)}; restore from another checkpoint"
        )
