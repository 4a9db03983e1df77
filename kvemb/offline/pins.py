"""Which checkpoints of a series are pinned: kept until they are unpinned, however many newer ones there are.

They are in one file, which is replaced as a whole (FORMAT.md, "A series"). A pin may have a name, as "best"; a name is
that of one checkpoint. REQUIRES for every change: the series' lock.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvemb import fresh_files
from kvemb.checks.brief import brief
from kvemb.checks.ranges import MAX_SERIES
from kvemb.durability import layout, manifest
from kvemb.errors import Corruption, UnsupportedFormat

FORMAT = 1  # on disk
MAX_BYTES, MAX_NAME = 1 << 24, 200


def check_name(name: object, what: str) -> str | None:
    """Return the name of a pin, None for none. Raises TypeError, ValueError."""
    if name is None:
        return None
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str such as 'best', or None, got {brief(name)}")
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise ValueError(f"{what} must have 1 to {MAX_NAME} printable characters, got {brief(name)}")
    return name


def read_pins(root: Path) -> dict[int, str | None]:
    """Return the numbers of the pinned checkpoints, ascending, each with its name. Raises Corruption."""
    path = root / layout.PINNED
    try:
        with open(path, "rb") as file:
            data: dict[str, Any] = json.loads(file.read(MAX_BYTES).decode())
        if (version := data.pop("format")) != FORMAT:
            raise UnsupportedFormat(f"{path} has format {brief(version)}, this kvemb reads {FORMAT}")
        if data.pop("checksum") != manifest.checksum_of({"format": version, **data}):
            raise ValueError("its checksum is wrong")
        found: dict[int, str | None] = {}
        for number, name in data["pinned"]:
            if type(number) is not int or not 0 <= number <= MAX_SERIES:
                raise ValueError(f"a number must be an int from 0 to {MAX_SERIES}, got {brief(number)}")
            found[number] = check_name(name, "a name")
        return dict(sorted(found.items()))
    except FileNotFoundError:
        return {}
    except UnsupportedFormat:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corruption(
            f"{path} is damaged: {error}; no checkpoint is deleted. Move it out of the series, and pin again what you "
            "want to keep"
        ) from error


def write_pins(root: Path, pinned: dict[int, str | None]) -> None:
    """Replace the pins of a series. Raises ColdStoreError."""
    data = {"format": FORMAT, "pinned": [[number, name] for number, name in sorted(pinned.items())]}
    whole = {"checksum": manifest.checksum_of(data), **data}
    path = root / layout.PINNED
    with layout.as_cold_store_error(f"write {path}"):
        fresh_files.replace(path, (json.dumps(whole) + "\n").encode(), root / f".{layout.PINNED}.tmp")
