"""Advice to install an extra names where this kvemb is from."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from kvemb import installed

FROM = {
    "pip install 'kvemb[torch]'": None,
    "pip install -e '/my work/kvemb[torch]'": {"url": "file:///my%20work/kvemb", "dir_info": {"editable": True}},
    "pip install '/src/kvemb[torch]'": {"url": "file:///src/kvemb", "dir_info": {}},
    "pip install 'kvemb[torch] @ file:///tmp/kvemb-0.1.0-py3-none-any.whl'": {
        "url": "file:///tmp/kvemb-0.1.0-py3-none-any.whl",
        "archive_info": {},
    },
    "pip install 'kvemb[torch] @ git+https://example.org/kvemb@main'": {
        "url": "https://example.org/kvemb",
        "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "0" * 40},
    },
}


@pytest.mark.parametrize("command", FROM)
def test_an_extra_is_added_to_what_is_installed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout, setuptools' metadata are found before pip's; without either, an index is assumed."""
    texts = [None, json.dumps(FROM[command])] if FROM[command] else []
    found = [SimpleNamespace(read_text=lambda file, text=text: text) for text in texts]
    monkeypatch.setattr(installed, "distributions", lambda name: found)
    assert installed.pip_install("torch") == command
