"""The house rules that a reader should be able to rely on: layers, packaging, types, sizes."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvemb

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {"kvemb": ROOT / "kvemb", "kvemb.backends": ROOT / "backends", "kvemb.tools": ROOT / "tools"}

# Each imports only what stands before it.
LAYERS = " ".join(
    [
        "errors options numeric schema hashing draws rows initializers restrict optimizers",
        "codec contracts manifest registry stats health layout selection budget interrupts meter",
        "inventory journal keyfile hotset changes readable delta shards checking checkpoint points",
        "fetch spill cut locate tiers scoring maker tiered arguments sizing checkpointer recovery replica",
        "by_name store opening variable scope verification salvage transfer series",
        "sorter tablefiles loading bulk __init__",
    ]
).split()
# A store opens variables when it is asked for them: it imports them then; a replica is handed them.
LATE = {
    *(("by_name", "variable"), ("by_name", "store")),
    *(("replica", "store"), ("replica", "variable")),
}

MOST_LINES = 350
# The only thing that moves rows, and the public face of a table: one idea each, and long. They may shrink.
LONGER = {"tiers.py": 400, "variable.py": 475}


def sources(package: str) -> list[Path]:
    return sorted(FOLDERS[package].glob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield every module that a file imports by a statement, and whether that happens when it is loaded."""
    tree = ast.parse(path.read_text())
    late: set[ast.AST] = set()
    for node in ast.walk(tree):
        checking = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if checking or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            late.update(ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node not in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            if node.module == "kvemb":
                yield from ((f"kvemb.{alias.name}", node not in late) for alias in node.names)
            else:
                yield node.module, node not in late


def top(module: str) -> str:
    return module.partition(".")[0]


# Layers.


def test_every_module_of_the_core_has_a_layer():
    assert sorted(LAYERS) == sorted(path.stem for path in sources("kvemb"))


@pytest.mark.parametrize("path", sources("kvemb"), ids=lambda path: path.stem)
def test_the_core_imports_only_what_stands_below(path):
    allowed = LAYERS[: LAYERS.index(path.stem)]
    for module, when_loaded in imports(path):
        if top(module) != "kvemb":
            continue
        _, _, name = module.partition(".")
        if when_loaded or (path.stem, name) not in LATE:
            assert name.split(".")[0] in allowed, f"{path.name} imports {module}"


@pytest.mark.parametrize("path", sources("kvemb"), ids=lambda path: path.stem)
def test_the_core_imports_no_machine(path):
    for module, _ in imports(path):
        assert top(module) not in ("rocksdict", "cupy"), f"{path.name} imports {module}"
        assert not module.startswith(("kvemb.backends", "kvemb.tools")), f"{path.name} imports {module}"


@pytest.mark.parametrize("path", sources("kvemb.backends"), ids=lambda path: path.stem)
def test_backends_stand_on_contracts_and_know_no_tiers(path):
    below = {f"kvemb.{name}" for name in LAYERS[: LAYERS.index("registry")]}
    for module, _ in imports(path):
        assert top(module) != "rocksdict" or path.name == "rocks.py", "only backends/rocks.py imports rocksdict"
        if module.startswith("kvemb.backends"):
            continue
        assert top(module) != "kvemb" or module in below, f"{path.name} imports {module}"


@pytest.mark.parametrize("path", sources("kvemb.tools"), ids=lambda path: path.stem)
def test_tools_use_only_public_names(path):
    public = {f"kvemb.{name}" for name in kvemb.__all__} | {"kvemb", "kvemb.__version__"}
    for module, _ in imports(path):
        if top(module) != "kvemb" or module.startswith("kvemb.tools"):
            continue
        assert module in public, f"{path.name} imports {module}"


def test_every_public_name_exists_and_is_sorted():
    assert kvemb.__all__ == sorted(kvemb.__all__)
    for name in kvemb.__all__:
        assert getattr(kvemb, name) is not None


# Sizes.


@pytest.mark.parametrize("package", FOLDERS)
def test_no_file_is_long(package):
    for path in sources(package):
        most = LONGER.get(path.name, MOST_LINES) if package == "kvemb" else MOST_LINES
        lines = len(path.read_text().splitlines())
        assert lines <= most, f"{path.relative_to(ROOT)} has {lines} lines; one idea a file"


@pytest.mark.parametrize("package", FOLDERS)
def test_every_module_says_what_it_is(package):
    for path in sources(package):
        assert ast.get_docstring(ast.parse(path.read_text())), path.name


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "FORMAT.md"])
def test_pages_name_files_that_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:kvemb|backends|tools|tests)/[\w/]+\.py\b", text)) | set(
        re.findall(r"\]\((\w+\.md)\)", text)
    )
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


# Packaging.


def test_every_folder_is_packaged_and_flat():
    settings = PROJECT["tool"]["setuptools"]
    assert settings["packages"] == list(FOLDERS)
    assert settings["package-dir"] == {"kvemb.backends": "backends", "kvemb.tools": "tools"}
    assert settings["package-data"] == {"kvemb": ["py.typed"]}
    assert (ROOT / "kvemb" / "py.typed").is_file()
    for folder in FOLDERS.values():
        below = [path for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"]
        assert below == [], "a package that is not listed is missing from the wheel"


def test_the_version_is_the_packages():
    assert kvemb.__version__ == PROJECT["project"]["version"]


def copied_sources(target: Path) -> Path:
    for name in ("kvemb", "backends", "tools"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    return target


def test_the_wheel_holds_kvemb_and_nothing_else(tmp_path):
    source = copied_sources(tmp_path)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(tmp_path / "out"), "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300)
    unobtainable = ("No matching distribution", "No module named pip", "Connection", "connection")
    if done.returncode and any(sign in done.stderr for sign in unobtainable):
        pytest.skip("the build backend cannot be obtained here")
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "out").glob("*.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    expected = ["kvemb/py.typed"]
    expected += [f"{package.replace('.', '/')}/{path.name}" for package in FOLDERS for path in sources(package)]
    assert sorted(names) == sorted(expected)


# Types and lint.


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """The three folders as the one package they are installed as, for mypy, which follows no editable install."""
    target = tmp_path_factory.mktemp("joined")
    ignored = shutil.ignore_patterns("__pycache__")
    for package, folder in FOLDERS.items():
        shutil.copytree(folder, target / package.replace(".", "/"), ignore=ignored, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", target)
    return target


def test_mypy_finds_nothing(joined):
    pytest.importorskip("mypy")
    assert PROJECT["tool"]["mypy"]["strict"] is True
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=joined, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_finds_nothing():
    pytest.importorskip("ruff")
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", "kvemb", "backends", "tools", "tests"]
        done = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
