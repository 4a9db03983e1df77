"""The run-book has every error, every warning and every line of the log, in the words in which people meet them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvemb import errors

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "operate" / "runbook.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


def told() -> Iterator[tuple[str, str]]:
    """Yield where the library warns or logs, and the longest part of the message that is always the same."""
    for path in [*(ROOT / "kvemb").rglob("*.py"), *(ROOT / "backends").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "warnings.warn",
                *(f"_logger.{level}" for level in ("info", "warning", "error", "exception", "critical")),
            ):
                given = node.args[0]
                parts = given.values if isinstance(given, ast.JoinedStr) else [given]
                texts = [part.value for part in parts if isinstance(part, ast.Constant)]
                pieces = [piece.strip() for text in texts for piece in re.split(r"%\w", text)]
                yield f"{path.relative_to(ROOT)}:{node.lineno}", max(pieces, key=len)


MESSAGES = dict(told())


def test_each_error_has_a_section_of_its_name():
    kinds = [name for name, kind in vars(errors).items() if inspect.isclass(kind) and kind is not errors.KvembError]
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == kinds


def test_messages_are_found():
    assert len(MESSAGES) >= 20
    assert any("restrict removes nothing" in message for message in MESSAGES.values())


@pytest.mark.parametrize("where", MESSAGES)
def test_each_warning_and_line_of_the_log_is_told(where):
    message = MESSAGES[where]
    # What logs a whole object logs its str(): kvemb.durability.recovery and kvemb.cluster.coordination.recovery.
    wanted = [message] if message else ["was not closed; recovered: its durable point of", "the cluster went back"]
    assert [each for each in wanted if " ".join(each.split()) not in WORDS] == []
