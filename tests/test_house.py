"""The house rules that a reader should be able to rely on: layers, packaging, types."""

from __future__ import annotations

import ast
import fcntl
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import Future
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from planted_faults_table import FAULTS

import kvemb.contracts
from kvemb.backends.cuda.device import Device
from kvemb.cluster.data_plane.channel import Channel, Keeper
from kvemb.cluster.transport import Transport
from kvemb.engine.keys import GivenKeys
from kvemb.offline.places import Source

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {"kvemb": ROOT / "kvemb", "kvemb.backends": ROOT / "backends", "kvemb.tools": ROOT / "tools"}

# The layers of the core, the lowest first: a module of kvemb/ itself, or a folder. Each imports only what stands
# before it.
LAYERS = " ".join(
    [
        "errors version installed masking hard_links fresh_files threads kernels",
        "checks handle signatures shared_docs rows optimizers initializers timestamp restrict options",
        "limits contracts registry journal stats store_state progress",
        "memory tiers operations durability engine",
        "defaults variable_scope variable pooling catalog replica many_tables store",
        "opening default_store offline pickling bulk __init__ frameworks cluster torch keras monitoring",
    ]
).split()
# A variable says which store it is in: the one name of a layer above, for annotations alone (TYPE_CHECKING).
UPWARD = [("variable", "kvemb.store")]


def sources(package: str) -> list[Path]:
    """The files of a package, those of its folders included."""
    return sorted(path for path in FOLDERS[package].rglob("*.py") if "__pycache__" not in path.parts)


@cache
def tree_of(path: Path) -> ast.Module:
    """What a file consists of."""
    return ast.parse(path.read_text(encoding="utf-8"))


def module_of(path: Path) -> str:
    """The name under which a file is imported."""
    for package, folder in FOLDERS.items():
        if path.is_relative_to(folder):
            parts = [part for part in path.relative_to(folder).with_suffix("").parts if part != "__init__"]
            return ".".join([package, *parts])
    raise ValueError(path)


def layer_of(module: str) -> str:
    """The layer of a module of the core."""
    return "__init__" if module == "kvemb" else module.split(".")[1]


@cache
def import_statements(path: Path) -> list[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """List every import of a file, whether it waits for a call, and whether it is for annotations alone."""
    found: list[tuple[ast.Import | ast.ImportFrom, bool, bool]] = []

    def look(node: Any, late: bool, unseen: bool) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append((node, late, unseen))
        late = late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        unseen = unseen or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):  # no expression imports
            for inner in getattr(node, block, None) or []:
                look(inner, late, unseen)

    for statement in tree_of(path).body:
        look(statement, False, False)
    return found


def for_annotations(path: Path) -> list[str]:
    """The modules that a file imports for annotations alone."""
    found = [node for node, _, unseen in import_statements(path) if unseen]
    return [node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name for node in found]


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """List every module that a file imports by a statement that runs, and whether it does when the file is loaded."""
    found: list[tuple[str, bool]] = []
    for node, late, unseen in import_statements(path):
        if unseen:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, not late) for alias in node.names]
        else:
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            # What is imported from a folder may be one of its modules, and is then all that is loaded for it.
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                whole = inner in MODULES or node.module == "kvemb"
                found.append((inner if whole else node.module, not late))
    return found


OTHER_CONTRACTS = [Device, GivenKeys, Transport, Channel, Keeper, Source, Future]
CONTRACTS = {
    name: {each for base in kind.__mro__[:-1] for each in vars(base) if inspect.getdoc(getattr(kind, each, None))}
    for name, kind in [*vars(kvemb.contracts).items(), *((kind.__name__, kind) for kind in OTHER_CONTRACTS)]
    if inspect.isclass(kind)
}
MODULES = {module_of(path): path for package in FOLDERS for path in sources(package)}


def top(module: str) -> str:
    return module.partition(".")[0]


# Layers.


def test_every_layer_of_the_core_has_a_floor():
    assert sorted(LAYERS) == sorted({layer_of(module_of(path)) for path in sources("kvemb")})


def test_the_core_imports_only_what_stands_below():
    for path in sources("kvemb"):
        place = LAYERS.index(layer_of(module_of(path)))
        allowed = LAYERS[: place + (path.parent != ROOT / "kvemb")]
        above = [module for module, _ in imports(path) if top(module) == "kvemb" and layer_of(module) not in allowed]
        assert above == [], path.relative_to(ROOT)


def test_one_module_names_a_type_of_a_layer_above():
    assert [(path.stem, module) for path in sources("kvemb") for module in for_annotations(path)] == UPWARD


def test_no_files_import_in_a_circle():
    """Of all three packages, imports that happen when a file is loaded."""
    graph = {
        name: {other for other, loaded in imports(path) if loaded and other in MODULES}
        for name, path in MODULES.items()
    }
    order = TopologicalSorter({name: others - {name} for name, others in graph.items()})
    order.prepare()  # raises CycleError, which names them


def test_the_core_imports_no_machine():
    machines = ("rocksdict", "cupy", "kvemb.backends", "kvemb.tools")
    for path in sources("kvemb"):
        assert [module for module, _ in imports(path) if module.startswith(machines)] == [], path.relative_to(ROOT)


def test_cold_databases_are_opened_in_one_place():
    naming = [path.name for name in FOLDERS for path in sources(name) if "cold_backend(" in path.read_text()]
    assert sorted(naming) == ["cold_databases.py", "registry.py"]


def test_backends_stand_on_contracts_and_know_no_tiers():
    below = LAYERS[: LAYERS.index("registry")]
    database = tuple(f"rocks{each}.py" for each in ("", "_families", "_options", "_store"))
    for path in sources("kvemb.backends"):
        for module in (module for module, _ in imports(path) if not module.startswith("kvemb.backends")):
            assert top(module) != "rocksdict" or path.name in database, f"only {database} import rocksdict"
            assert top(module) != "kvemb" or layer_of(module) in below, f"{path.name} imports {module}"


# One kills the process of a shard, and one measures the data plane alone, which nothing public does.
_INSIDE_A_CLUSTER = "demos.run_cluster", "bench.cluster.exchange"
INSIDE_A_CLUSTER = tuple(f"kvemb.tools.{name}" for name in _INSIDE_A_CLUSTER)


def test_tools_use_only_public_names():
    public = {
        "kvemb",
        "kvemb.__version__",
        "kvemb.installed",
        "kvemb.masking",
        "kvemb.checks.usable_memory",  # whether memory can hold a table
        "kvemb.kernels.crc32c",
        "kvemb.limits",  # the argument `limits` of kvemb.open
        "kvemb.cluster",
        "kvemb.torch",
        "kvemb.keras",
        "kvemb.tools",
    }
    public |= {f"kvemb.{name}" for name in kvemb.__all__}
    for path in sources("kvemb.tools"):
        own = [module for module, _ in imports(path) if top(module) == "kvemb"]
        inner = [module for module in own if module not in public and not module.startswith("kvemb.tools.")]
        assert inner == [] or module_of(path) in INSIDE_A_CLUSTER, path.relative_to(ROOT)


def test_every_public_name_exists_and_is_sorted():
    assert kvemb.__all__ == sorted(kvemb.__all__)
    for name in kvemb.__all__:
        assert getattr(kvemb, name) is not None


def test_a_reader_who_asks_for_names_gets_the_public_ones():
    assert sorted(dir(kvemb)) == sorted([*kvemb.__all__, "__all__", "__doc__", "__version__"])


def test_no_process_imports_from_the_folder_where_it_is_started():
    """With -m alone, Python takes a user's json.py for its own."""
    for path in MODULES.values():
        assert 'sys.executable, "-m"' not in path.read_text(), f"{path.relative_to(ROOT)} starts Python without -P"


# What belongs to an object is asked of it.

# The one door from what users hold to what it stands for; numba's cache; PyTorch's running backward pass (as
# torch.utils.checkpoint asks for it), conversions of a module (which torch.nn.RNN overrides, too), and a tensor without
# memory, with what GradScaler calls: to these there is no other way.
REACHES = {
    "kvemb/handle.py": {"_inside"},
    "kvemb/kernels/compiling.py": {"_cache", "_rebuild", "_reduce"},
    # Whether this thread has a lock, as threading.Condition asks it; which threads there are.
    "kvemb/tiers/access.py": {"_current_frames"},
    "kvemb/torch/anchor_watch.py": {"_version"},
    "kvemb/torch/joined_gradient.py": {"_make_wrapper_subclass", "_amp_foreach_non_finite_check_and_unscale_"},
    "kvemb/torch/module.py": {"_C", "_apply", "_current_graph_task_id", "_save_to_state_dict"},
    "kvemb/torch/embedding.py": {"_load_from_state_dict"},
    "kvemb/torch/gradients.py": {"_C", "_current_graph_task_id"},
    # The end of PyTorch's backward pass; where fit begins, as Keras' BackupAndRestore sets it; all layers of a model.
    "kvemb/keras/on_torch.py": {"_C", "_current_graph_task_id", "_execution_engine"},
    "kvemb/keras/checkpoint.py": {"_flatten_layers", "_initial_epoch", "_symbolic_build"},
    # The tensors that an operation of Keras got, of which a layer may have several.
    "kvemb/keras/keys.py": {"_inbound_nodes"},
    # What tf.saved_model.save asks of each layer.
    "kvemb/keras/layer.py": {"_flatten_layers", "_trackable_children"},
    "kvemb/keras/learning_rate.py": {"_flatten_layers"},
    "kvemb/keras/servable.py": {"_flatten_layers"},
}
# Public names in spite of how they are spelt: of modules, of named tuples, and of PyTorch's tensors.
PUBLIC = {"os._exit", "data._version", "_asdict", "_replace", "_fields", "_make"}


@cache
def reaches(path: Path) -> list[tuple[int, str, str]]:
    """Where a file names a private attribute of another object: the line, the expression, the attribute."""
    found = []
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if not own and not {node.attr, ast.unparse(node)} & PUBLIC:
            found.append((node.lineno, ast.unparse(node), node.attr))
    return found


def test_no_module_reaches_into_another_objects_private_attributes():
    for path in MODULES.values():
        allowed = REACHES.get(path.relative_to(ROOT).as_posix(), set())
        found = {attribute for *_, attribute in reaches(path)}
        assert found >= allowed, f"{path}: {allowed - found} is excused and not there"
        for line, expression, attribute in reaches(path):
            assert attribute in allowed, f"{path.relative_to(ROOT)}:{line}: {expression}"


def test_every_module_says_what_it_is():
    for path in MODULES.values():
        assert ast.get_docstring(tree_of(path)), path.name


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "FORMAT.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_pages_name_files_that_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:kvemb|backends|tools|tests)/[\w/]+\.py\b", text))
    named |= set(re.findall(r"\]\((\w+\.md)\)", text))
    named |= set(re.findall(r"`((?:kvemb|backends|tools|tests)/[\w/]*/)`", text))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    # A file whose folder was named before it.
    files = [f"/{path.relative_to(ROOT).as_posix()}" for folder in FOLDERS.values() for path in folder.rglob("*.py")]
    files += [f"/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "tests").rglob("*.py")]
    short = set(re.findall(r"`([\w/]+\.py)`", text))
    assert [name for name in sorted(short) if not any(file.endswith(f"/{name}") for file in files)] == []


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_the_code_of_every_page_is_python():
    """Other tests run it, more slowly; a page that was wrapped anew must not have its code wrapped too."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("```") % 2 == 0
        for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            compile(block, page.name, "exec")


FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


@cache
def anchors_of(page: Path) -> set[str]:
    """The headings of a page, and of those that it includes, as links name them."""
    text = page.read_text(encoding="utf-8")
    included = re.findall(r"^```\{include\} (\S+)", text, re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    shown = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in shown}
    return anchors.union(*(anchors_of(page.parent / path) for path in included))


def test_links_of_pages_lead_somewhere_in_the_repository():
    """Where Markdown is read as files, a link from the root of the site, /guides/tables.md, is one of the disk."""
    for page in PAGES:
        text = FENCED.sub("", page.read_text(encoding="utf-8"))
        for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]*)\)", text):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert not path.startswith("/"), f"{page}: {link}"
            assert target.exists(), f"{page}: {link}"
            if anchor and target.suffix == ".md":
                assert anchor in anchors_of(target), f"{page}: {link}"


def test_pages_that_the_site_fills_in_say_where_else_to_read_them():
    """Lines that begin with % are none of the site's."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if included := re.search(r"\A(?:%.*\n\n)?```\{include\} (\S+)", text):
            named = f"[{Path(included[1]).name}]({included[1]})"
            assert text.startswith(f"% In the repository, this page is {named}.\n\n"), page
        if "\n.. auto" in text:
            assert re.match(r"% In the repository, this page has names only. `help\(kvemb\.\w+\)`", text), page


# Packaging.


def test_every_folder_is_packaged():
    settings = PROJECT["tool"]["setuptools"]
    assert settings["packages"] == sorted(
        {module_of(path.parent / "__init__.py") for name in FOLDERS for path in sources(name)}
    )
    assert settings["package-dir"] == {"kvemb.backends": "backends", "kvemb.tools": "tools"}
    assert settings["package-data"] == {"kvemb": ["py.typed"], "kvemb.backends.cuda": ["*.cu"]}
    assert (ROOT / "kvemb" / "py.typed").is_file()
    for folder in {path.parent for name in FOLDERS for path in sources(name)}:
        assert (folder / "__init__.py").is_file(), (
            f"{folder.relative_to(ROOT)} says what lives there in its __init__.py"
        )


def test_the_version_is_the_packages():
    version = PROJECT["project"]["version"]
    assert kvemb.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


# Types and lint.


# NumPy's types are read once, not in every run.
CACHE = ROOT / ".mypy_cache"
MYPY = [sys.executable, "-m", "mypy", "--cache-dir", str(CACHE)]


def mypy(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run mypy in a folder; one at a time, as it gives up on a cache that another one has locked for five seconds."""
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / "one_at_a_time", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.run([*MYPY, *words], cwd=place, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """The three folders as the one package they are installed as, for mypy, which follows no editable install."""
    target = tmp_path_factory.mktemp("joined")
    ignored = shutil.ignore_patterns("__pycache__")
    for package, folder in FOLDERS.items():
        shutil.copytree(folder, target / package.replace(".", "/"), ignore=ignored, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", target)
    return target


WRONG = """
import kvemb

store = kvemb.open("store")
reveal_type(store.get_variable("users", dim=3))
store.get_variable("users", dims=3)
store.get_variable("users", dim="3")
kvemb.get_variable("users", store="store")
kvemb.Variable(nam="users")
"""


@pytest.fixture(scope="module")
def told(joined) -> tuple[list[str], list[str]]:
    """The findings of one run of mypy: in kvemb, and in WRONG."""
    pytest.importorskip("mypy")
    assert PROJECT["tool"]["mypy"]["strict"] is True
    (joined / "wrong.py").write_text(WRONG)
    done = mypy(joined, "--no-error-summary", "-p", "kvemb", "-m", "wrong")
    assert (done.returncode, done.stderr) == (1, "")
    lines = [line for line in done.stdout.splitlines() if "defined in" not in line]
    in_wrong = [line for line in lines if line.startswith("wrong.py")]
    return [line for line in lines if line not in in_wrong], in_wrong


@pytest.mark.slow
def test_mypy_finds_nothing(told):
    assert told[0] == []


@pytest.mark.slow
def test_mypy_finds_a_wrong_argument_of_a_variable(told):
    expected = ['"kvemb.variable.Variable"', '"dims" for "get_variable"', '"dim" to "get_variable"']
    expected += ['"store" to "get_variable"', '"nam" for "Variable"']
    assert len(told[1]) == len(expected), told[1]
    for line, expected_part in zip(told[1], expected, strict=True):
        assert expected_part in line


# Of pyright's findings: that a type is unknown as another one is, which has a finding of its own; that the classes of
# PyTorch are not followed.
FOLLOWS = ("partially unknown", "Type of metaclass unknown", "Type of base class unknown")


def public_in_full(module: ModuleType) -> set[str]:
    """The names of all that a module has in public, and where it and the classes that it inherits from are defined."""
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    found = {f"{module.__name__}.{name}" for name in names}
    for value in (getattr(module, name) for name in names):
        for each in inspect.getmro(value) if inspect.isclass(value) else [value]:
            found.add(f"{getattr(each, '__module__', '')}.{getattr(each, '__qualname__', '')}")
    return found


@pytest.mark.slow
@pytest.mark.needs("basedpyright", "torch", "keras")
def test_pyright_knows_the_type_of_everything_public(joined, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    words = [sys.executable, "-P", "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"]
    words += ["--verifytypes", "kvemb", "--ignoreexternal"]
    environment = {**os.environ, "PYTHONPATH": str(joined)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    modules = ["kvemb", "kvemb.bulk", "kvemb.cluster", "kvemb.errors", "kvemb.initializers", "kvemb.optimizers"]
    modules += ["kvemb.torch", "kvemb.keras"]
    modules += [name for name in ["kvemb.monitoring"] if importlib.util.find_spec(name) is not None]
    public = set().union(*(public_in_full(importlib.import_module(name)) for name in modules))
    ours = [each for each in symbols if {each["name"], each["name"].rpartition(".")[0]} & public and each["isExported"]]
    of_frameworks = {"kvemb.torch.embedding.Embedding.forward", "kvemb.keras.embedding.Embedding.call"}
    assert {"kvemb.store.Store.checkpoint", *of_frameworks} <= {each["name"] for each in ours}
    told = [
        f"{each['name']}: {found['message']}"
        for each in ours
        for found in each["diagnostics"]
        if not any(part in found["message"] for part in FOLLOWS)
    ]
    assert told == [], "\n".join(told)


def test_ruff_finds_nothing():
    pytest.importorskip("ruff")
    for command in (["check"], ["format", "--check"]):
        folders = ["kvemb", "backends", "tools", "tests", "docs", "examples"]
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", *folders]
        done = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr


# Tests.

COLD_SUITE, HOT_SUITE = "backends/test_cold_store.py", "backends/test_hot_table.py"
TESTED_BY = {
    # Contracts: one suite each, over every implementation. Kernels, by what calls them.
    **dict.fromkeys(
        ["kvemb/contracts/cold.py", "backends/rocks.py", "backends/rocks_store.py", "backends/memory_store.py"],
        COLD_SUITE,
    ),
    **dict.fromkeys(["kvemb/contracts/hot.py", "backends/cpu.py"], HOT_SUITE),
    "backends/cpu_probe.py": HOT_SUITE,
    "kvemb/engine/keys.py": "engine/test_given_keys.py",
    "backends/cpu_insert.py": "backends/test_hot_table_growth.py",
    "backends/cpu_bags.py": "backends/test_hot_table_batches.py",
    "backends/cuda/cupy_device.py": "backends/cuda/test_device.py",
    "backends/cuda/cells.py": "backends/cuda/test_table.py",
    "backends/cuda/steps.py": "backends/cuda/test_sums.py",
    # Arrays on a GPU, beside those of the host.
    **dict.fromkeys(
        ["kvemb/contracts/device.py", "backends/cuda/arrays.py"],
        "engine/test_on_device.py",
    ),
    "kvemb/rows/hash_kernels.py": "rows/test_hashing.py",
    "kvemb/version.py": "test_house.py",
    "kvemb/rows/row_kernels.py": "rows/test_row_copies.py",
    "backends/intrinsics.py": "rows/test_random_kernels.py",
    "tools/formats/tensor_bundle.py": "tools/formats/test_tf_checkpoint.py",
    "kvemb/cluster/in_flight": "cluster/test_in_flight.py",
    "kvemb/cluster/router_kernels.py": "cluster/test_router.py",
    # What a cluster's variable does is compared with what a store's does.
    **{
        f"kvemb/cluster/{name}.py": "cluster/test_same_results.py"
        for name in ("catalog", "cluster", "messages", "operations", "ranking", "scans", "shard", "storage", "variable")
    },
    **{f"kvemb/cluster/{name}.py": "cluster/test_calls.py" for name in ("local", "transport")},
    **{f"kvemb/cluster/{name}.py": "cluster/test_ray_transport.py" for name in ("ray_actors", "ray_starting")},
    "kvemb/cluster/coordination/opened.py": "cluster/coordination/test_recovery.py",
    **{
        f"kvemb/cluster/{name}.py": "cluster/durability/test_checkpointing.py"
        for name in ("making", "coordination/starting")
    },
    **{
        f"kvemb/cluster/durability/{name}.py": "cluster/durability/test_checkpointing.py"
        for name in ("restoring", "cluster_series")
    },
    "kvemb/operations/constraining.py": "test_variable_scope.py",
    "kvemb/cluster/durability/offline.py": "tools/commands/test_cluster.py",
    # The two ways in which rows travel, with one suite.
    "kvemb/cluster/data_plane": "cluster/data_plane/test_links.py",
    # Folders whose files are one public thing.
    "kvemb/initializers": "initializers/test_initializers.py",
    "kvemb/initializers/seeding.py": "initializers/test_seeding.py",
    "kvemb/restrict": "test_restrict.py",
    "kvemb/monitoring": "test_monitoring.py",
    "kvemb/optimizers": "optimizers/test_formulas.py",
    # A folder of tests must not be called torch: where PyTorch is not installed, it would be imported in its place.
    **{
        f"kvemb/torch/{name}.py": f"pytorch/test_{tests}.py"
        for tests, names in {
            "embedding": ["embedding", "lookups", "options", "module"],
            "embedding_bag": ["embedding_bag", "pooling"],
            "optimizer": ["optimizer", "gradients", "rates"],
            **{name: [name] for name in ("bags", "collection", "eager", "prefetching")},
            **{name: [name] for name in ("connecting", "in_step", "joined_gradient", "launching", "ranks")},
            "states": ["states"],
            "anchor_watch": ["anchor_watch"],
            "weights": ["weights", "table_module"],
        }.items()
        for name in names
    },
    "kvemb/frameworks/rates.py": "pytorch/test_optimizer.py",
    "kvemb/frameworks/store_calls.py": "pytorch/test_collection.py",
    "kvemb/frameworks/variables.py": "pytorch/test_embedding.py",
    "kvemb/frameworks/reading_ahead.py": "pytorch/test_prefetching.py",
    **{
        f"kvemb/keras/{name}.py": f"keras3/test_{tests}.py"
        for tests, names in {
            "embedding": "embedding layer table_layer requests layer_call gates on_tensorflow on_jax on_torch",
            "steps": "steps anchors",
            "embedding_bag": "embedding_bag pooled shapes",
            "distributed": "distributed tables",
            "checkpoint": "checkpoint state",
            **{name: name for name in ("configs", "converted", "exporting", "keys", "learning_rate", "prefetching")},
            "rows_state": "rows_state",
            "servable": "servable static_tables",
            **{name: name for name in ("static_draws", "field_wise", "raised")},
        }.items()
        for name in names.split()
    },
    "kvemb/many_tables/methods.py": "many_tables/test_calls.py",
    # Bounds alone, which the manifest's fields are held against.
    "kvemb/checks/ranges.py": "durability/test_hostile_metadata.py",
}


def test_a_method_without_a_docstring_is_one_of_a_contract():
    cluster = [path for path in sources("kvemb") if "cluster" in path.relative_to(ROOT).parts]
    for path in [*sources("kvemb.backends"), *(ROOT / "kvemb" / "engine").glob("*.py"), *cluster]:
        for kind in (node for node in tree_of(path).body if isinstance(node, ast.ClassDef)):
            functions = [node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
            overloads = {node.name for node in functions if "overload" in map(ast.unparse, node.decorator_list)}
            bare = {node.name for node in functions if ast.get_docstring(node) is None} - overloads
            described = {name for base in kind.bases for name in CONTRACTS.get(ast.unparse(base).partition("[")[0], ())}
            assert bare <= described, (path.name, kind.name, bare - described)


def test_every_module_has_tests_of_its_name():
    for path in (path for name in ("kvemb", "kvemb.backends") for path in sources(name)):
        module, folder = path.relative_to(ROOT), path.parent.relative_to(ROOT)
        below = folder.relative_to("kvemb") if folder.parts[0] == "kvemb" else folder
        usual = f"{below.as_posix()}/test_{path.name}"
        named = TESTED_BY.get(module.as_posix(), TESTED_BY.get(folder.as_posix(), usual))
        if path.name != "__init__.py":
            assert (ROOT / "tests" / named).is_file(), f"{module} has no tests/{named}"


def test_no_test_patches_a_constant():
    """What a test makes small is a value that is passed in: kvemb.limits, or an argument."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if not re.search(r"\b(setattr|setitem|delattr)\(", text := path.read_text()):
            continue
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("setattr", "setitem", "delattr"):
                names = [word for argument in call.args[:2] for word in re.split(r"\W+", ast.unparse(argument))]
                upper = [name for name in names if len(name) > 1 and name.isupper()]
                assert upper == [], f"{path.name}:{call.lineno} patches {upper[0]}"


def test_every_planted_fault_is_in_its_file_once():
    """Otherwise tests/planted_faults.py, which no test runs, plants nothing there."""
    counts = {fault.title: (ROOT / fault.file).read_text().count(fault.right) for fault in FAULTS}
    assert counts == dict.fromkeys(counts, 1)
    assert [name for fault in FAULTS for name in fault.tests if not (ROOT / "tests" / name).exists()] == []
