"""How this kvemb was installed, and so how one of its extras is added."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import distributions
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname


def pip_install(extra: str) -> str:
    """Return the command that adds an extra to this kvemb: from its index, checkout, archive or repository.

    Follows PEP 610: an installation that is not from an index says in direct_url.json where it is from.
    """
    named = f"kvemb[{extra}]"
    origin = _origin()
    url = origin.get("url", "")
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"pip install {editable}{shlex.quote(f'{url2pathname(urlsplit(url).path)}[{extra}]')}"
    if repository := origin.get("vcs_info"):
        revision = repository.get("requested_revision")
        url = f"{repository['vcs']}+{url}{f'@{revision}' if revision else ''}"
    return f"pip install {shlex.quote(f'{named} @ {url}' if url else named)}"


def _origin() -> dict[str, Any]:
    """Return what direct_url.json says, {} where there is none: kvemb is from an index, or was not installed by pip.

    In a checkout, setuptools' own metadata come first, which have no such file.
    """
    texts = (found.read_text("direct_url.json") for found in distributions(name="kvemb"))
    origin: dict[str, Any] = json.loads(next(filter(None, texts), "{}"))
    return origin
