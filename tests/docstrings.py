"""What kvemb has in public, and the sections of its docstrings, for test_docstrings.py and test_doctests.py.

Sections are Google's: a heading at the margin, such as `Args:`, and below it indented entries, `name: what it is`.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kvemb import errors

# What stands before each example of a docstring, as the reference says: a store with a variable of three rows of dim 2.
_PAGE = Path(__file__).parents[1] / "docs" / "reference" / "python.md"
SETUP = _PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]

# In this order in a docstring.
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Warns", "Example")
_HEADING = re.compile(r"^([A-Z]\w*(?: [A-Za-z]\w*)?):[ ]*\n(?=[ ]+\S)", re.MULTILINE)
_ENTRY = re.compile(r"(\*{0,2}\w+): \S.*")
_ERRORS = re.compile(r"([A-Z]\w*(?:, [A-Z]\w*)*): \S.*")


@dataclass(frozen=True)
class Public:
    """A function, class, method or property.

    name: as users write it. module: the one that defines it. overridden: the docstrings of what a method overrides.
    """

    name: str
    value: Any
    module: str
    is_method: bool = False
    overridden: tuple[str, ...] = ()

    @property
    def doc(self) -> str:
        """Its docstring; empty if there is none."""
        # A class without a docstring has none, whatever its base says; a method may have that of the one it overrides.
        if inspect.isclass(self.value):
            return inspect.cleandoc(vars(self.value).get("__doc__") or "")
        return inspect.getdoc(self.value) or ""

    @property
    def signature(self) -> inspect.Signature | None:
        """Its arguments, self excepted, and what it returns; None if it takes what Python's own do."""
        try:
            signature = inspect.signature(self.value)
        except (ValueError, TypeError):
            return None
        given = list(signature.parameters.values())
        bound = self.is_method and not inspect.ismethod(self.value)
        return signature.replace(parameters=given[1:] if bound else given)

    @property
    def is_plain(self) -> bool:
        """Whether it is a class whose constructor stores its arguments unchecked: a dataclass, a named tuple."""
        made = vars(self.value) if inspect.isclass(self.value) else {}
        return "_fields" in made or ("__dataclass_fields__" in made and not hasattr(self.value, "__post_init__"))


def public(modules: dict[str, ModuleType]) -> Iterator[Public]:
    """Yield everything public in modules, by the names under which users import them, each thing once."""
    seen: set[int] = set()
    for prefix, module in modules.items():
        for name in public_names(module):
            for each in _with_members(f"{prefix}.{name}", getattr(module, name)):
                known = id(
                    getattr(each.value, "__func__", each.value)
                )  # of a class method, there is a new one each time
                if known not in seen:
                    seen.add(known)
                    yield each


def public_names(module: ModuleType) -> list[str]:
    """Return the names that a module shows: __all__, or the classes and functions that it defines."""
    found = getattr(module, "__all__", None)
    if found is not None:
        return list(found)
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return [name for name in own if not name.startswith("_")]


def _with_members(name: str, value: Any) -> Iterator[Public]:
    if inspect.isfunction(value):
        yield Public(name, value, value.__module__)
    elif inspect.isclass(value) and _is_ours(value):
        yield Public(name, value, value.__module__)
        for member in (member for member in dir(value) if not member.startswith("_")):
            # Of a method that several classes inherit, its own class says the name.
            kinds = [kind for kind in value.__mro__ if member in vars(kind)]
            written = f"{name.rpartition('.')[0]}.{kinds[0].__name__}.{member}"
            before = tuple(inspect.getdoc(getattr(kind, member)) or "" for kind in kinds[1:] if _is_ours(kind))
            found, got = vars(kinds[0])[member], getattr(value, member)
            if isinstance(found, property) and _is_ours(found.fget):
                yield Public(written, found, found.fget.__module__, True, before)
            elif (inspect.isfunction(got) or inspect.ismethod(got)) and _is_ours(got):
                yield Public(written, got, got.__module__, not isinstance(found, staticmethod), before)


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "kvemb"


def sections(doc: str) -> dict[str, str]:
    """Return the text below each heading of a docstring, dedented; what stands before the first is under ""."""
    parts = _HEADING.split(doc)
    texts = [parts[0], *parts[2::2]]
    return dict(zip(["", *parts[1::2]], [inspect.cleandoc("\n" + text) for text in texts], strict=True))


def entries(section: str, pattern: re.Pattern[str] = _ENTRY) -> tuple[list[str], list[str]]:
    """Return the names that a section describes, and the lines that describe nothing."""
    begun = [line for line in section.splitlines() if line[:1].strip()]
    matches = [(line, pattern.fullmatch(line)) for line in begun]
    names = [name for _, match in matches if match is not None for name in match[1].split(", ")]
    return names, [line for line, match in matches if match is None]


def faults(each: Public, *, made_by_kvemb: bool = False) -> list[str]:
    """Return what is wrong with a docstring, a line each. made_by_kvemb: a class whose constructor is not for users."""
    if not each.doc:
        return ["it has no docstring"]
    own = sections(each.doc)
    told = list(_faults_of_form(each.doc, own))
    # A method says what differs from the one that it overrides.
    found = {name: text for doc in (*reversed(each.overridden), each.doc) for name, text in sections(doc).items()}
    if isinstance(each.value, property) or (inspect.isclass(each.value) and issubclass(each.value, enum.Enum)):
        return told
    signature = each.signature
    if signature is None:
        return told
    is_class = inspect.isclass(each.value)
    if not (is_class and made_by_kvemb):
        told += _faults_of_arguments(each, found, signature)
    if not is_class:
        told += _faults_of_results(found, signature)
    many = len(signature.parameters) > 1 and not each.is_plain and not (is_class and made_by_kvemb)
    return [*told, *(["it has no `Raises:`"] if many and "Raises" not in found else [])]


def _faults_of_form(doc: str, found: dict[str, str]) -> Iterator[str]:
    first, *rest = doc.splitlines()
    if not first.endswith(".") or (rest and rest[0]):
        yield "its first line is not a whole sentence, with an empty line after it"
    names = [name for name in found if name]
    for name in names:
        if name not in SECTIONS:
            yield f"`{name}:` is no section; they are {', '.join(SECTIONS)}"
    if len(names) < len(_HEADING.findall(doc)):
        yield "it has a section twice"
    known = [name for name in names if name in SECTIONS]
    if known != sorted(known, key=SECTIONS.index):
        yield f"its sections are not in the order of {', '.join(SECTIONS)}"
    for name in ("Args", "Attributes"):
        for line in entries(found.get(name, ""))[1]:
            yield f"`{name}:` has a line that is not `name: text`: {line!r}"
    raised, odd = entries(found.get("Raises", ""), _ERRORS)
    for line in odd:
        yield f"`Raises:` has a line that is not `Error: text`: {line!r}"
    for name in raised:
        if not hasattr(errors, name) and not hasattr(builtins, name):
            yield f"`Raises:` names {name}, which is neither of kvemb.errors nor of Python"
    if "Example" in found and ">>>" not in found["Example"]:
        yield "its `Example:` has no line that runs (>>>)"


def _faults_of_arguments(each: Public, found: dict[str, str], signature: inspect.Signature) -> Iterator[str]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    wanted = [stars.get(given.kind, "") + given.name for given in signature.parameters.values()]
    described, attributes = entries(found.get("Args", ""))[0], entries(found.get("Attributes", ""))[0]
    have = [*described, *(attributes if inspect.isclass(each.value) else [])]
    for name in wanted:
        if name not in have and not name.startswith("_"):
            yield f"argument {name} is not described"
    for name in described:
        if name not in wanted:
            yield f"`Args:` describes {name}, which is no argument"
    fields = {field.name for field in dataclasses.fields(each.value)} if dataclasses.is_dataclass(each.value) else set()
    for name in attributes if fields else []:
        if name not in fields and not hasattr(each.value, name):
            yield f"`Attributes:` describes {name}, which it does not have"
    for name in sorted({name for name in have if have.count(name) > 1}):
        yield f"argument {name} is described twice"
    in_order = [name for name in described if name in wanted]
    if in_order != sorted(in_order, key=wanted.index):
        yield "`Args:` is not in the order of the signature"


def _faults_of_results(found: dict[str, str], signature: inspect.Signature) -> Iterator[str]:
    result = str(signature.return_annotation)
    returns = "Returns" in found or "Yields" in found
    if result in ("None", "<class 'NoneType'>", "NoReturn"):
        if returns:
            yield "it returns nothing, and says what it returns"
    elif not returns:
        yield f"it returns {result}, and has no `Returns:` or `Yields:`"


def modules(names: list[str]) -> dict[str, ModuleType]:
    """Import modules by their names."""
    return {name: importlib.import_module(name) for name in names}
