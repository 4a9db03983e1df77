"""Every benchmark runs at a tiny size and says what it documents. No time is asserted: a benchmark is not a test."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import CpuDevice, CudaOnCpuTable
from typer.testing import CliRunner

from kvemb import registry
from kvemb.errors import BackendUnavailable
from kvemb.installed import pip_install
from kvemb.tools.bench.cold import memory
from kvemb.tools.bench.cold.hitrate import lru_hit_rate
from kvemb.tools.bench.command import app
from kvemb.tools.bench.data import Zipf, ids_of, values_of
from kvemb.tools.bench.gpu import rates, training
from kvemb.tools.bench.gpu.cells import FullTable
from kvemb.tools.bench.hot.keras import run as run_keras
from kvemb.tools.bench.hot.torch import run as run_torch
from kvemb.tools.bench.results import Report, Spread, compare
from kvemb.tools.failures import BadInput

TABLE = "--rows 3000 --dim 8 --batch 256"
TIERED = f"{TABLE} --hot-rows 300 --budget-mib 32"
PARTS = "all hot", "spilling", "two tables that fill the budget"
OF_TORCH = {"torch", "torch_threads"}
# A tiny run of each benchmark: its options, how many lines it has, and its facts besides the compile time.
TINY: dict[str, tuple[str, int, set[str]]] = {
    "lookup": (f"{TABLE} --dim 16 --batches 2 --runs 3", 6, set()),
    "upsert": (f"{TABLE} --dim 16 --batches 2 --runs 3", 4, set()),
    "pool": ("--rows 3000 --dim 8 --bags 20 --bag 5 --batches 2 --runs 2", 2, set()),
    "gpu": ("--rows 120 --dim 8 --batch 64 --batches 1 --runs 1", 8, {"gpu", "bytes_per_second"}),
    "small": ("--rows 3000 --dim 8 --calls 5 --runs 2", 10, {"cold_read_us", "cpu_us"}),
    "strings": ("--strings 300 --runs 2", 9, set()),
    "criteo": (
        "--lines 600 --dim 4 --batch 64 --runs 2",
        *(5, {*OF_TORCH, "losses_compared", "first_loss", "last_loss"}),
    ),
    "cluster": (f"{TABLE} --steps 2 --runs 2 --transport local --pause 1", 2, set()),
    "ranks": ("--tables 2 --rows 300 --batch 64 --steps 2 --runs 2", 2, {*OF_TORCH, "losses_compared"}),
    "train": (f"{TIERED} --steps 3 --runs 2", 6, {"hit_rate", "cold_writes_per_step", "rows_compared"}),
    "cold": ("--rows 3000 --rows 6000 --dim 8 --batch 256 --steps 3 --runs 2", 3, set()),
    "disk": (f"{TABLE} --batches 2 --runs 2 --budget-mib 8", 3, set()),
    "larger": (
        f"{TABLE} --seconds 1 --budget-mib 8",
        *(2, {"share_in_memory", *(f"rows_per_second_in_quarter_{number}" for number in range(1, 5))}),
    ),
    "tables": ("--tables 3 --rows 3000 --batch 256 --steps 4 --budget-mib 8", 2, {"hot_rows", "rows_in_all"}),
    "spent": (f"{TABLE} --rows 20000 --tables 3 --steps 10 --runs 2 --budget-mib 4", 5, {"hot_rows"}),
    "hitrate": (f"{TIERED} --accesses 3000", 2, {"promotions", "hit_rate_by_eighth"}),
    "memory": (f"{TIERED} --rows 6000 --steps 3", 3, {"3,000 rows", "6,000 rows"}),
    "series": (
        "--rows 3000 --dim 8 --checkpoints 3 --flush-mib 1 --flushes 2",
        *(3, {"changed_bytes", "first_push_bytes", "bases_after_the_first", "push_s", "pull_s", "flush_s"}),
    ),
    "follow": (
        f"{TABLE} --hot-rows 1000 --every 0.05 --points 2 --runs 1",
        *(2, {"refresh_s", "refreshes"}),
    ),
    "serve": ("--rows 3000 --dim 8 --keys 16 --requests 20 --runs 2 --budget-mib 8", 4, {"hit_rate"}),
    "checkpoint": (
        f"{TABLE} --hot-mib 1 --dirty-rows 300 --variables 3 --runs 1",
        *(12, {f"{what}, {how}" for what in ("longest call without one", "until it is complete") for how in PARTS}),
    ),
    "marks": ("--rows 3000 --dim 8 --runs 2", 8, set()),
    "torch": (f"{TABLE} --steps 2 --runs 2", 3, {*OF_TORCH, "fbgemm", "rows_compared"}),
    "features": ("--tables 3 --rows 400 --batch 64 --steps 2 --runs 2", 3, {*OF_TORCH, "rows_compared"}),
    "prefetch": (f"{TABLE} --hot-rows 500 --steps 2 --runs 2", 1, {*OF_TORCH, "model_ms", "rows_compared"}),
    "keras": (f"{TABLE} --bag 5 --steps 2 --runs 2", 4, {"keras", "backend", "rows_compared"}),
}
NEEDS_CXX = pytest.mark.skipif(which("g++") is None, reason="needs g++, which runs the GPU's kernels here")
# They start processes, which import everything anew.
SLOW = {"disk", "larger", "memory", "follow", "checkpoint", "marks", "train", "ranks", "spent", "series"}
NEEDING = {each: ["torch"] for each in ("checkpoint", "marks", "torch", "features", "prefetch", "criteo")}
NEEDING |= {"keras": ["keras", "torch"], "ranks": ["torch", "ray"]}


def marks_of(bench: str) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.slow] * (bench in SLOW) + [NEEDS_CXX] * (bench == "gpu")
    # Keras' variables do not know NumPy 2's argument.
    ignored = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
    return [*marks, *[pytest.mark.needs(*NEEDING.get(bench, []))] * (bench in NEEDING), ignored]


RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def _gpu_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setitem(registry.hot_backends, "gpu", "cuda_on_cpu:CudaOnCpuTable")


def run(bench: str, folder: Path, *more: str) -> str:
    where = [] if bench == "strings" else ["--folder", str(folder)]
    result = RUNNER.invoke(app, [bench, *TINY[bench][0].split(), *where, *more], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert not list(folder.iterdir()), "a benchmark left files behind"
    return result.stdout


@pytest.mark.parametrize("bench", [pytest.param(each, marks=marks_of(each)) for each in TINY])
def test_json_has_the_documented_fields(bench: str, tmp_path: Path) -> None:
    report: dict[str, Any] = json.loads(run(bench, tmp_path, "--json"))
    assert list(report) == ["bench", "settings", "lines", "facts"]
    assert report["bench"] == bench
    _, lines, facts = TINY[bench]
    assert set(report["facts"]) - {"compile_s"} == facts
    assert len(report["lines"]) == lines + (report["facts"].get("fbgemm") == "measured")  # one peer more
    for line in report["lines"]:
        assert list(line) == ["name", "unit", "ours", "peer_name", "peer", "ratio", "bar", "met"]
        sides = ("ours", "peer", "ratio") if line["peer_name"] else ("ours",)
        of_two = line["name"].endswith(": more")  # the difference of two times, which the machine may turn round
        for side in sides:
            assert line[side]["min"] <= line[side]["median"] <= line[side]["max"]
            assert line[side]["min"] > 0 or (of_two and side != "peer")
        assert (line["met"] is None) == (line["bar"] == "")


@pytest.mark.needs("torch")
def test_several_tables_are_trained_with_prefetching_and_compared(tmp_path: Path) -> None:
    report: dict[str, Any] = json.loads(run("prefetch", tmp_path, "--tables", "3", "--json"))
    assert report["settings"]["tables"] == 3
    assert report["facts"]["rows_compared"] == 3 * report["settings"]["rows"]


def test_without_json_a_table_is_printed_with_large_numbers_by_thousands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run("hitrate", tmp_path)
    assert all(part in output for part in ("bench hitrate:", "ours", "ratio"))
    Report([compare("a", "keys/s", [4.25e9])], {"bytes_per_second": 4.8e12}).show("x", {}, as_json=False)
    output = capsys.readouterr().out
    assert "4.25G" in output
    assert "bytes_per_second: 4.8T" in output


def test_without_a_framework_its_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    advice = f"install Keras and the backend that KERAS_BACKEND names: {pip_install('keras')}"
    with pytest.raises(BadInput, match=re.escape(f"needs keras; {advice}")):
        run_keras(folder=tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BadInput, match=re.escape(f"needs PyTorch; install it: {pip_install('torch')}")):
        run_torch(folder=tmp_path)


GPU_SIZES = ["--cells", "512", "--keys", "64", "--train-rows", "100", "--train-dim", "1024", "--device-mib", "4"]
RATES = [
    "find with rows, dim 64, uniform keys",
    "bytes moved by that find (688 a key)",
    "bytes moved by a copy of rows by number (512 a row)",
    "the same find, with the host's wait for each call",
    "the same find, keys by a Zipf law, 1.05",
    "the same find, 60% of keys from the last batch, the better of two calls",
    "insert and evict, dim 64",
    "bytes moved by that insert (about 1593 a key)",
    "the same insert, with the host's wait for each call",
    "the same insert, the better of two calls",
]


@pytest.mark.slow
@NEEDS_CXX
def test_all_of_gpu_has_every_bar(tmp_path: Path) -> None:
    report = json.loads(run("gpu", tmp_path, "--all", *GPU_SIZES, "--json"))
    names = [line["name"] for line in report["lines"][8 + len(RATES) :]]
    assert all("step" in name for name in names[:-1])  # beside PyTorch, where it has a GPU
    assert names[-1].startswith("training, table of 10 times 4 MiB")
    assert report["lines"][-1]["bar"] == "ratio ≥ 3"
    assert report["facts"]["gpu"] == "this machine's CPU"
    assert report["facts"]["load"] > 0.95


@NEEDS_CXX
def test_the_figures_of_a_part_of_gpu_are_printed_when_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []

    def stopped(*_: Any) -> Any:
        said.append(sys.stdout.buffer.getvalue().decode())  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "measure", stopped)
    for how in ([], ["--json"]):
        arguments = ["gpu", *TINY["gpu"][0].split(), "--only", "find", "--only", "training", *GPU_SIZES, *how]
        assert RUNNER.invoke(app, [*arguments, "--folder", str(tmp_path)]).exit_code != 0
    assert said[0].startswith("bench gpu: rows 120")
    assert "find with rows" in said[0]
    assert said[1] == "", "JSON is one document"


class _Hopper(CpuDevice):
    def name(self) -> str:
        return "NVIDIA H100 80GB HBM3"


@NEEDS_CXX
def test_parts_of_gpu_are_measured_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaOnCpuTable, "open_device", staticmethod(lambda name: _Hopper()))
    for part, bar, count in (("find", "≥ 2.8 billion on an H100", 6), ("insert", "≥ 0.7 billion on an H100", 4)):
        report = json.loads(run("gpu", tmp_path, "--only", part, *GPU_SIZES, "--json"))
        assert len(report["lines"]) == count
        first, moved = report["lines"][:2]
        assert (first["bar"], first["met"]) == (bar, False)
        share = first["ours"]["median"] * (688 if part == "find" else 1593) / report["facts"]["bytes_per_second"]
        assert moved["ratio"]["median"] == pytest.approx(share)
        assert report["settings"]["only"] == [part]
    refused = RUNNER.invoke(app, ["gpu", "--only", "losses"])
    assert refused.exit_code == 2
    assert "'losses' is none of calls, find, insert" in refused.output


@NEEDS_CXX
def test_a_full_table_of_a_gpu_has_each_key_once_whatever_was_inserted() -> None:
    table = FullTable("gpu:0", 512, rates.BAR_DIM, 64, 2)
    assert [line.name for line in [*rates.find(table, 2), *rates.insert(table, 2)]] == RATES
    keys = table._table.keys()
    assert len(np.unique(keys)) == len(keys) == 512


def test_without_a_gpu_its_command_says_what_to_install(tmp_path: Path) -> None:
    registry.hot_backends["gpu"] = "kvemb.backends.cuda.table:CudaTable"
    with pytest.raises(BackendUnavailable, match=r"device 'gpu:99' is not available: .*use devices=None"):
        run("gpu", tmp_path, "--device", "gpu:99")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["lookup", "--folder", str(tmp_path / "no")])
    assert result.exit_code == 2


def test_ratio_is_the_median_of_the_runs_own_ratios() -> None:
    line = compare("x", "rows/s", [1.0, 20.0, 3.0], "peer", [1.0, 40.0, 1.0]).ratio_at_least(1.5)
    assert line.ratio == Spread(1.0, 0.5, 3.0)
    assert line.met is False


def test_memory_is_measured_while_a_table_is_loaded_and_trained(tmp_path: Path) -> None:
    seen = memory.measure(3000, 8, 300, 256, 3, 1.0, 32, str(tmp_path))
    # The kernel's counters are approximate, and anonymous memory is sampled.
    assert 0 < seen["anon_peak_mb"] <= 1.1 * seen["peak_mb"]
    assert list(tmp_path.iterdir()) == []


def test_values_differ_by_row_and_are_not_zero() -> None:
    values = values_of(ids_of(np.arange(1000)), 8)
    assert len(np.unique(values, axis=0)) == 1000
    assert np.abs(values).min() < 0.01 < np.abs(values).max() < 0.51


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.2])
def test_zipf_draws_each_rank_as_often_as_it_should(exponent: float) -> None:
    drawn = np.bincount(Zipf(50, exponent, seed=1).sample(200_000), minlength=50) / 200_000
    weights = np.arange(1, 51) ** -exponent
    np.testing.assert_allclose(drawn, weights / weights.sum(), atol=0.004)


def test_the_static_optimum_is_the_share_of_the_top_ranks() -> None:
    assert Zipf(2_000_000, 0.8, seed=1).mass_of_top(131_072) == pytest.approx(0.558, abs=0.0005)


def test_lru_counts_hits_in_order() -> None:
    # 1 hits; 3 pushes 2 out; 2 comes back and pushes 1 out.
    assert lru_hit_rate([np.array([1, 2, 1]), np.array([3, 2, 1])], 2) == 1 / 6
