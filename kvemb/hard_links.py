"""Hard links, made here alone, and by RocksDB: a second name of a file that never changes costs no copy.

Some filesystems have none: FAT, some network filesystems, and some in user space. Stateless.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from kvemb.errors import ColdStoreError


def linked(source: Path | str, target: Path | str) -> bool:
    """Make target, a new name, a hard link to source. Returns False, and makes nothing, if that is impossible.

    It is across two filesystems, on one without links, and for a file with as many links as it may have. Raises
    FileExistsError.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(target):
            raise
        return False
    return True


def renew_full(folder: Path, pattern: str) -> None:
    """Replace each file of a folder that has as many links as it may have, 65,000 on ext4, by a copy with none.

    pattern: of the files' names. The files never change, so it does not matter who has one open. Raises OSError.
    """
    for path in list(folder.glob(pattern)):
        other = path.with_name(f"{path.name}.link")
        other.unlink(missing_ok=True)  # left by a process that was killed here
        with suppress(FileNotFoundError):  # its database has deleted it meanwhile
            if not linked(path, other):
                with open(path, "rb") as source, open(other, "xb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
                    copy.flush()
                    os.fsync(copy.fileno())
                os.replace(other, path)
        other.unlink(missing_ok=True)


def check_possible(folder: Path, store: Path) -> None:
    """Raise ColdStoreError if a store cannot be on its filesystem, for want of links. folder: one of the store's.

    Raises OSError if no file can be made in folder.
    """
    file, link = folder / "file", folder / "link"
    file.touch(exist_ok=False)
    try:
        os.link(file, link)
    except OSError as error:
        raise ColdStoreError(
            f"a store cannot be at {store}, because its filesystem refuses hard links ({error.strerror}), and each "
            "flush would copy all tables; name a directory on a local disk, and save checkpoints here: they are copied"
        ) from error
    finally:
        link.unlink(missing_ok=True)
        file.unlink()
