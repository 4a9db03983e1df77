"""How this kvemb was installed: where its parts are, and how one of its extras is added."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname


def source_tree(package: str) -> list[str]:
    """Return where backends and tools are, if not inside the package: beside it in kvemb's source tree, else nowhere.

    Python that is started in the tree imports its kvemb/, also where another one is installed. A folder tools/ beside
    an installed kvemb/ belongs to another package.
    """
    root = Path(package).parent
    project = root / "pyproject.toml"
    ours = project.is_file() and '\nname = "kvemb"\n' in project.read_text(encoding="utf-8")
    return [str(root)] if ours else []


def pip_install(extra: str | None = None) -> str:
    """Return the command that installs this kvemb, with an extra: from its index, checkout, archive or repository.

    Follows PEP 610: an installation that is not from an index says in direct_url.json where it is from.
    """
    wanted = "" if extra is None else f"[{extra}]"
    origin = _origin()
    url = origin.get("url", "")
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"pip install {editable}{shlex.quote(f'{url2pathname(urlsplit(url).path)}{wanted}')}"
    if repository := origin.get("vcs_info"):
        revision = repository.get("requested_revision")
        url = f"{repository['vcs']}+{url}{f'@{revision}' if revision else ''}"
    return f"pip install {shlex.quote(f'kvemb{wanted} @ {url}' if url else f'kvemb{wanted}')}"


def _origin() -> dict[str, Any]:
    """Return what direct_url.json says, {} where there is none: kvemb is from an index, or was not installed by pip.

    In a checkout, setuptools' own metadata come first, which have no such file.
    """
    texts = (found.read_text("direct_url.json") for found in distributions(name="kvemb"))
    origin: dict[str, Any] = json.loads(next(filter(None, texts), "{}"))
    return origin
