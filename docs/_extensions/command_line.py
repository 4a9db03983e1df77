"""Directives that describe commands of `kvemb` from the commands themselves, when the site is built.

`{commands} info ls` makes a section for each command: usage, help, arguments and options. A command of a group is named
with it: `cluster/status`. `{command-table} bench` makes a table of a group's commands, each with the first line of its
help.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from kvemb.tools.cli import _command

# How a value is shown, by its type; a range of integers as far as this is a mere check for mistakes.
_VALUES = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
_NO_LIMIT = 1 << 62
_CODE = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*\b|'[^']+'(?!\w)|[A-Z]{3,}/\d+|kvemb(?: [a-z]+)+)")


class Commands(Directive):
    """A section for each command that is named."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        return [self._section(words.replace("/", " ")) for words in self.arguments[0].split()]

    def _section(self, words: str) -> nodes.Node:
        command, name = _found(words), f"kvemb {words}"
        section = nodes.section("", nodes.title(name, name), ids=[nodes.make_id(name)], names=[nodes.make_id(name)])
        self.state.document.note_explicit_target(section, section)
        section += _block(" ".join([name, *(_shown(each) for each in _arguments(command)), "[OPTIONS]"]))
        for text in command.help.split("\n\n"):
            section += _paragraph(text)
        types = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
        listed = nodes.definition_list()
        for parameter in [*_arguments(command), *_options(command)]:
            term, about = _term(parameter, types[parameter.name]), _about(parameter, types[parameter.name])
            listed += nodes.definition_list_item("", nodes.term("", "", nodes.literal(term, term)), about)
        if len(listed):
            section += listed
        return section


class CommandTable(Directive):
    """A table of the commands of a group."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        group = self.arguments[0]
        table = nodes.table(classes=["commands"])
        columns = nodes.tgroup(cols=2)
        columns += [nodes.colspec(colwidth=25), nodes.colspec(colwidth=75)]
        columns += nodes.thead("", _row([_text("command")], [_text("what it does")]))
        body = nodes.tbody()
        for name, command in _found(group).commands.items():
            code = f"kvemb {group} {name}"
            body += _row([nodes.literal(code, code)], _inline(command.help.split("\n\n")[0]))
        columns += body
        table += columns
        return [table]


def _found(words: str) -> Any:
    """Return a command by its name, with its group's before it. Raises KeyError."""
    found = _command()
    for word in words.split():
        found = found.commands[word]
    return found


def _arguments(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "argument"]


def _options(command: Any) -> list[Any]:
    """Return the options, but for --help, which every command has."""
    return [each for each in command.params if each.param_type_name == "option" and each.name != "help"]


def _shown(argument: Any) -> str:
    """Return an argument as the usage line has it."""
    name = argument.metavar or argument.name.upper()
    name += "..." if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _type(hint: Any) -> tuple[Any, Any]:
    """Return the type of a value, without None and list, and the OptionInfo or ArgumentInfo that describes it."""
    kind, *described = get_args(hint)
    kind = (
        next((each for each in get_args(kind) if each is not type(None)), kind)
        if type(None) in get_args(kind)
        else kind
    )
    kind = get_args(kind)[0] if get_origin(kind) is list else kind
    return kind, described[-1]


def _term(parameter: Any, hint: Any) -> str:
    """Return an option with its value, or an argument."""
    if parameter.param_type_name == "argument":
        return _shown(parameter)
    kind, _ = _type(hint)
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    if kind is bool:
        return names
    value = "|".join(get_args(kind)) if get_origin(kind) is Literal else _VALUES[kind]
    return f"{names} {parameter.metavar or value}"


def _about(parameter: Any, hint: Any) -> nodes.definition:
    """Return the help of an argument or an option, its range, and its default."""
    kind, described = _type(hint)
    facts = []
    if described.min is not None and described.min > -_NO_LIMIT:
        bounded = described.max is not None and described.max < _NO_LIMIT
        facts.append(f"{described.min:,} to {described.max:,}" if bounded else f"at least {described.min:,}")
    shown = described.show_default if isinstance(described.show_default, str) else parameter.default
    if kind is not bool and not parameter.required and isinstance(shown, (str, int, float)):
        facts.append(f"default: {shown if isinstance(shown, str) else format(shown, ',')}")
    if parameter.param_type_name == "option" and parameter.required:
        facts.append("required")
    content = _inline(parameter.help or "")
    if facts:
        content += [
            _text(" "),
            nodes.emphasis("", "", *_inline(f"{'; '.join(facts)[:1].upper()}{'; '.join(facts)[1:]}.")),
        ]
    return nodes.definition("", _plain(nodes.paragraph("", "", *content)))


def _paragraph(text: str) -> list[nodes.Node]:
    """Return a paragraph of a help text: text, a list whose first line may end in a colon, or an example."""
    if text.startswith("Example: "):
        return [_block(f"$ {text.removeprefix('Example: ')}", "console")]
    first, *lines = text.strip("\n").split("\n")
    if not lines:
        return [_plain(nodes.paragraph("", "", *_inline(first)))]
    head = [_plain(nodes.paragraph("", "", *_inline(first)))] if first.endswith(":") else []
    listed = nodes.bullet_list()
    for line in lines if head else [first, *lines]:
        name, colon, rest = line.strip().partition(": ")
        content = [nodes.literal(name, name), *_inline(colon + rest)]
        listed += nodes.list_item("", _plain(nodes.paragraph("", "", *content)))
    return [*head, listed]


def _inline(text: str) -> list[nodes.Node]:
    """Return text in which options, examples of values and commands are code."""
    parts = _CODE.split(text)
    code = [part.strip("'") for part in parts]
    return [nodes.literal(code[at], code[at]) if at % 2 else _text(part) for at, part in enumerate(parts) if part]


def _text(text: str) -> nodes.Text:
    return nodes.Text(text)


def _plain(node: nodes.Element) -> nodes.Element:
    """Leave hyphens and quotes of a node as they are."""
    node["support_smartquotes"] = False
    return node


def _block(text: str, language: str = "text") -> nodes.literal_block:
    return nodes.literal_block(text, text, language=language)


def _row(*cells: list[nodes.Node]) -> nodes.row:
    entries = [nodes.entry("", _plain(nodes.paragraph("", "", *cell))) for cell in cells]
    return nodes.row("", *entries)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("commands", Commands)
    app.add_directive("command-table", CommandTable)
    return {"parallel_read_safe": True}
