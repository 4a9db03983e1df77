"""Names of variables and paths of files that cannot lead out of a directory."""

from __future__ import annotations

import unicodedata
from typing import Annotated

from kvemb.checks.fields import Accepted
from kvemb.checks.ranges import MAX_NAME_BYTES

# Limits of operating systems for a file name and for a path.
_MAX_PART, _MAX_PATH = 255, 4096
_BREAKS = ("Cc", "Cs", "Zl", "Zp")


def is_name(name: object) -> bool:
    """Whether this is a valid variable's name, in a manifest or as an argument.

    Does not require printable characters, which differ between versions of Unicode: engine.specification.check_name
    does, for new variables.
    """
    if not isinstance(name, str) or name == "default":
        return False
    if any(unicodedata.category(character) in _BREAKS for character in name):
        return False
    return _are_parts(name.split("/")) and len(name.encode()) <= MAX_NAME_BYTES


def is_path(name: str) -> bool:
    """Whether this is a valid path of a file below a checkpoint."""
    parts = name.split("/")
    plain = name.isascii() and name.isprintable() and len(name) <= _MAX_PATH
    return plain and _are_parts(parts) and max(map(len, parts)) <= _MAX_PART


def _are_parts(parts: list[str]) -> bool:
    return not {"", ".", ".."} & {*parts}


Name = Annotated[str, Accepted("variables' names", is_name)]
FilePath = Annotated[str, Accepted("paths below the directory", is_path)]
