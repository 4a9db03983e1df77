"""Another version of kvemb as a folder from which a process imports it (PYTHONPATH)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

from kvemb.tools.failures import BadInput

# The folders of a checkout, and where they are in the package.
_FOLDERS = {"kvemb": "kvemb", "backends": "kvemb/backends", "tools": "kvemb/tools"}


def unpack(version: str, target: Path) -> None:
    """Put the package at target, so that `import kvemb` finds it there.

    version: a folder with a checkout, a wheel, or a revision of the git repository that the working directory is in.
    Raises BadInput if it is none of these.
    """
    place = Path(version)
    if place.suffix == ".whl" and place.is_file():
        with zipfile.ZipFile(place) as wheel:
            wheel.extractall(target)
    elif place.is_dir():
        _join(place, target)
    else:
        checkout = target / "checkout"
        checkout.mkdir(parents=True)
        _archive(version, checkout)
        _join(checkout, target)
        shutil.rmtree(checkout)
    if not (target / "kvemb" / "backends").is_dir():
        raise BadInput(f"{version} does not contain kvemb; name a checkout, a wheel or a revision")


def environment(target: Path) -> dict[str, str]:
    """Return the variables of a process that imports from target, and keeps its compiled kernels beside it."""
    return {**os.environ, "PYTHONPATH": str(target), "NUMBA_CACHE_DIR": str(target / "compiled")}


def _join(checkout: Path, target: Path) -> None:
    for folder, place in _FOLDERS.items():
        if (checkout / folder).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(checkout / folder, target / place, ignore=ignored, dirs_exist_ok=True)


def _archive(revision: str, target: Path) -> None:
    told = subprocess.run(["git", "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=False)
    command = ["git", "-C", told.stdout.strip() or ".", "archive", "--end-of-options", revision, *_FOLDERS]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        why = " ".join(done.stderr.decode(errors="replace").split())
        raise BadInput(f"{revision} is not a checkout, a wheel or a revision of the repository here: {why}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(target, filter="data")
