"""Validation of rocksdict-config.json, which rocksdict writes next to RocksDB's files (FORMAT.md, "Rows")."""

from __future__ import annotations

import json
from pathlib import Path

from kvemb.checks.brief import brief
from kvemb.errors import Corruption

NAME = "rocksdict-config.json"
# At most this much of the file is read, which is many times its size.
_MAX_BYTES = 4096
_EXPECTED = {"raw_mode": True, "prefix_extractors": {}}


def check_config(rows: Path) -> None:
    """Raise Corruption if the file exists and does not say that keys and values are raw bytes."""
    path = rows / NAME
    try:
        with open(path, "rb") as file:
            config = json.loads(file.read(_MAX_BYTES))
    except FileNotFoundError:
        return  # rocksdict will write it
    except (ValueError, RecursionError) as error:
        raise Corruption(f"{path} is damaged: {error!r}; restore from another checkpoint") from error
    # 1 == True in Python, but not in JSON.
    if config != _EXPECTED or config["raw_mode"] is not True:
        raise Corruption(
            f"{path} is damaged: it must be {json.dumps(_EXPECTED)}, got {brief(config)}; "
            "restore from another checkpoint"
        )
