"""The run-book has every error, every warning and every line of the log, in the words in which people meet them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kvemb import errors

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "operate" / "runbook.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


LEVELS = ("info", "warning", "error", "exception", "critical")
CALLS = {"warnings.warn", *(f"_logger.{level}" for level in LEVELS)}


@cache
def sentences() -> tuple[dict[str, str], list[str]]:
    """Return what told() and strings() find in the library's sources, each of which is parsed once."""
    messages: dict[str, str] = {}
    texts: list[str] = []
    for path in [*(ROOT / "kvemb").rglob("*.py"), *(ROOT / "backends").rglob("*.py")]:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        messages |= {f"{path.relative_to(ROOT)}:{line}": text for line, text in told(nodes)}
        texts += strings(nodes)
    return messages, texts


def told(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the lines that warn or log, and the longest part of the message that is always the same."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func) in CALLS:
            given = node.args[0]
            parts = given.values if isinstance(given, ast.JoinedStr) else [given]
            texts = [part.value for part in parts if isinstance(part, ast.Constant)]
            pieces = [piece.strip() for text in texts for piece in re.split(r"%\w", text)]
            yield node.lineno, max(pieces, key=len)


def test_each_error_has_a_section_of_its_name():
    kinds = [name for name, kind in vars(errors).items() if inspect.isclass(kind) and kind is not errors.KvembError]
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == kinds


def test_each_warning_and_line_of_the_log_is_told():
    messages, _ = sentences()
    assert len(messages) >= 20
    assert any("restrict removes nothing" in message for message in messages.values())
    # What logs a whole object logs its str(): kvemb.durability.recovery and kvemb.cluster.coordination.recovery.
    of_objects = ["was not closed; recovered: its durable point of", "the cluster went back"]
    missing = [
        (where, each)
        for where, message in messages.items()
        for each in ([message] if message else of_objects)
        if " ".join(each.split()) not in WORDS
    ]
    assert missing == []


def strings(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the text of each string of the library; what is filled in is an ellipsis, and so is each doubtful part."""
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


# What others say: the system, Python, the shell.
OF_OTHERS = {
    *("No space left on device", "Permission denied", "Read-only file system", "Input/output error"),
    *("No locks available", "Operation not supported"),
    # torch, of collectives
    *("Timed out waiting", "ms for recv operation", "Watchdog caught collective operation timeout"),
}


def test_quoted_messages_are_those_of_the_library():
    """Of each error's section: the quote at its beginning, and the first column of its table, in backticks."""
    sections = PAGE.partition("## Errors when something is opened")[2].partition("## Failures without an error")[0]
    quotes = re.findall(r"^> (.+)$", sections, re.MULTILINE)
    for line in re.findall(r"^\| (.+?) \|", sections, re.MULTILINE):
        quotes += re.findall(r"`([^`]+ [^`]+)`", line)
    assert len(quotes) > 50
    library = "\n".join(" ".join(text.split()) for text in sentences()[1])
    # A message may be made of several strings: of the lock, who has it; and what to do, after a semicolon.
    pieces = {
        piece.strip() for quote in quotes for piece in re.split(r"\.\.\.|;|: (?=No)| (?=elsewhere)", quote)
    } - OF_OTHERS
    assert [piece for piece in sorted(pieces) if len(piece) > 3 and piece not in library] == []


# "; delete it", "or remove that", also as a cell of a table. "must not delete the" is no advice.
ADVICE = re.compile(r"(?:; |, | or |\| )(?:delete|remove|erase|wipe|discard|rm -rf?) (?:it|them|that|this|the)\b")


def test_neither_a_message_nor_the_run_book_advises_to_delete_what_may_be_the_only_copy():
    assert ADVICE.search("... exists; open it, or delete it")
    files = [path for folder in ("kvemb", "backends", "tools", "examples") for path in (ROOT / folder).rglob("*.py")]
    for path in [*files, *(ROOT / "docs" / "operate").rglob("*.md")]:
        assert ADVICE.findall(path.read_text(encoding="utf-8")) == [], path
