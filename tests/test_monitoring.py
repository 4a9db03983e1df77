"""What monitors get is complete, in the format of Prometheus, and there whatever happens to the store meanwhile."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from programs import run_python

import kvemb
import kvemb.cluster
import kvemb.monitoring
from kvemb import errors
from kvemb.handle import inside
from kvemb.monitoring import ProgressLine, PrometheusCollector, Scalars, prometheus_text, write_textfile
from kvemb.monitoring.figures import ALL, OF_STATS, OF_TIER
from kvemb.stats import Stats, TierSize

PAGE = Path(__file__).parents[1] / "docs" / "operate" / "monitoring.md"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def users(store):
    made = store.get_variable("users", dim=2, optimizer=kvemb.optimizers.SGD(0.5), hot_rows=16)
    made.upsert(np.arange(64), np.ones((64, 2), np.float32))
    made.apply_gradients([1, 2], made.lookup([1, 2]))
    made.lookup([*range(64), 1000])
    store.flush()
    return made


def series(text: str) -> Series:
    """The series of a text, strictly read: each figure has its help and type, once, before its series."""
    found: Series = {}
    name = ""
    described: set[str] = set()
    for line in text.splitlines():
        if helped := re.fullmatch(r"# HELP (\w+) \S.*", line):
            name = helped[1]
            assert name not in described
            described.add(name)
        elif not re.fullmatch(rf"# TYPE {name} (counter|gauge)", line):
            sample = re.fullmatch(r'(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)+)\} ([-+.e0-9]+)', line)
            assert sample, line
            assert sample[1] == name
            labels = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', sample[2])
            key = name, frozenset(labels)
            assert key not in found
            found[key] = float(sample[3])
    assert text.endswith("\n")
    return found


def value(found: Series, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def names(found: Series) -> set[str]:
    return {name for name, _ in found}


# What is there.


def test_every_count_of_a_variable_is_a_figure_of_its_value(users, store):
    fields = {field.name for field in dataclasses.fields(kvemb.Stats)} - {"tiers"}
    assert set(OF_STATS) == fields
    assert set(OF_TIER) == {field.name for field in dataclasses.fields(TierSize)}
    found, stats = series(prometheus_text(main=store)), users.stats
    assert names(found) == {figure.full_name for figure in ALL}
    assert stats.hits
    assert stats.misses
    assert stats.absent
    for field, figure in OF_STATS.items():
        assert value(found, figure.full_name, store="main", variable="users") == getattr(stats, field)
    for tier, size in stats.tiers.items():
        for field, figure in OF_TIER.items():
            labels = {"store": "main", "variable": "users", "tier": tier}
            assert value(found, figure.full_name, **labels) == getattr(size, field)
    assert {name for name in names(found) if name.endswith("_total")} == {
        figure.full_name for figure in ALL if figure.counter
    }


def test_names_end_in_their_unit():
    for figure in ALL:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", figure.name)
        # A unit stands at the end; what only grows ends in _total, and nothing else does.
        assert not re.search(r"(bytes|seconds)_", figure.name), figure.name
        assert not figure.name.endswith("_total")
    assert OF_STATS["seconds_cold_read"].full_name == "kvemb_cold_read_seconds_total"
    assert OF_STATS["bytes_hot"].full_name == "kvemb_hot_bytes"
    assert OF_STATS["hits"].full_name == "kvemb_hits_total"
    assert OF_STATS["rows_hot"].full_name == "kvemb_rows_hot"


def test_the_page_says_what_each_figure_means():
    table = PAGE.read_text(encoding="utf-8").partition("| figure |")[2].partition("\n\n")[0]
    assert [figure.full_name for figure in ALL if f"`{figure.full_name}`" not in table] == []


def test_a_store_says_whether_it_is_poisoned_and_how_far_it_is_durable(users, store):
    def now(name: str) -> float:
        return value(series(prometheus_text(main=store)), name, store="main")

    assert (now("kvemb_up"), now("kvemb_poisoned"), now("kvemb_point")) == (1, 0, store.point)
    assert now("kvemb_point_timestamp_seconds") == inside(store).current_manifest.created
    assert now("kvemb_memory_budget_bytes") == store.budget.total
    users.upsert([7], [[7, 7]])
    before = now("kvemb_point")
    store.flush()
    assert now("kvemb_point") > before
    store.state.poison(OSError("no space"))
    assert (now("kvemb_up"), now("kvemb_poisoned")) == (1, 1)
    store.close()
    assert series(prometheus_text(main=store)) == {("kvemb_up", frozenset({("store", "main")})): 0}


def test_labels_are_escaped_and_of_several_stores_apart(users, store, open_store, tmp_path):
    odd = open_store(tmp_path / "odd")
    odd.get_variable('a "quoted" \\ name', dim=1)
    text = prometheus_text(store, **{'o"\n\\': odd})
    assert 'kvemb_rows{store="o\\"\\n\\\\",variable="a \\"quoted\\" \\\\ name"} 0\n' in text
    found = series(text)
    assert value(found, "kvemb_rows", store=str(store.path), variable="users") == 64
    with pytest.raises(ValueError, match="two stores would have the label"):
        prometheus_text(store, store)
    with pytest.raises(TypeError, match="expected a store, got 'store'"):
        prometheus_text("store")
    with pytest.raises(TypeError, match="expected a store, got"):
        prometheus_text(main=users)


def test_counts_of_a_cluster_are_the_sums_over_its_shards(tmp_path):
    how: dict[str, Any] = {"shards": 2, "memory_budget": "4MiB", "scratch": tmp_path / "scratch", "transport": "local"}
    with kvemb.cluster.open(tmp_path / "series", **how) as cluster:
        users, gone = cluster.get_variable("users", dim=2), cluster.get_variable("gone", dim=2)
        users.upsert(np.arange(9), np.ones((9, 2), np.float32))
        users.lookup(np.arange(10))
        assert "kvemb_point_timestamp_seconds" not in names(series(prometheus_text(c=cluster)))
        cluster.checkpoint()
        with kvemb.cluster.connect(tmp_path / "series", transport="local") as other:
            other.drop_variable("gone")
        assert gone.name in inside(cluster).tables
        found = series(prometheus_text(c=cluster))
        assert names(found) == {figure.full_name for figure in ALL if not figure.name.startswith("memory")}
        made = kvemb.cluster.latest(tmp_path / "series").described.created
        assert value(found, "kvemb_point_timestamp_seconds", store="c") == made
        assert {dict(labels).get("variable") for _, labels in found} == {None, "users"}
        assert (value(found, "kvemb_up", store="c"), value(found, "kvemb_point", store="c")) == (1, 1)
        assert value(found, "kvemb_rows", store="c", variable="users") == 9
        assert value(found, "kvemb_absent_total", store="c", variable="users") == 1
        sent: list[str] = []
        scalars = Scalars(SimpleNamespace(add_scalar=lambda tag, *_: sent.append(tag)), cluster)
        inside(cluster).session.calls.lose(errors.ShardLost("shard 1 ended"))
        assert series(prometheus_text(c=cluster)) == {("kvemb_up", frozenset({("store", "c")})): 0}
        scalars.write(1)
        assert sent == []
        cluster.recover()
        assert value(series(prometheus_text(c=cluster)), "kvemb_up", store="c") == 1


# Whatever happens meanwhile.


@pytest.mark.slow
def test_a_forked_process_says_so_and_waits_for_no_lock(tmp_path):
    code = """
import os, warnings
import kvemb, kvemb.monitoring
warnings.simplefilter("ignore")  # fork beside threads is what this is about
with kvemb.open("store", memory_budget="8MiB") as store:
    users = store.get_variable("users", dim=2)
    with kvemb.handle.inside(users).storage.access.held():
        if not (child := os.fork()):
            lines = kvemb.monitoring.prometheus_text(main=store).splitlines()
            os._exit(7 if [line for line in lines if line[0] != "#"] == ['kvemb_up{store="main"} 0'] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    done = run_python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_variables_are_dropped_and_trained_while_others_read(users, store):
    sent: list[str] = []
    scalars = Scalars(SimpleNamespace(add_scalar=lambda tag, *_: sent.append(tag)), store)
    ended, failed = threading.Event(), []

    def scrape() -> None:
        try:
            while not ended.is_set():
                found = series(prometheus_text(main=store))
                assert value(found, "kvemb_up", store="main") == 1
                assert value(found, "kvemb_rows", store="main", variable="users") == 64
                scalars.write(1)
        except BaseException as error:
            failed.append(error)

    scraping = [threading.Thread(target=scrape) for _ in range(2)]
    for thread in scraping:
        thread.start()
    for _ in range(5):
        store.get_variable("short", dim=1).upsert([1], [[1]])
        users.lookup(np.arange(64))
        store.drop_variable("short")
    ended.set()
    for thread in scraping:
        thread.join()
    assert failed == []
    assert value(series(prometheus_text(main=store)), "kvemb_up", store="main") == 1


def test_keys_that_are_absent_make_no_count_fall_when_their_lookup_ends(users, store, monkeypatch):
    """While a lookup runs, they count as misses; and Prometheus takes what falls for a process that began again."""
    counts = [(1, 5, 0), (1, 2, 3), (2, 3, 3), (2, 7, 3), (0, 1, 0)]  # the last one after a cluster's recovery
    now = iter([kvemb.Stats(hits=hits, misses=misses, absent=absent) for hits, misses, absent in counts])
    monkeypatch.setattr(inside(users), "stats", lambda: next(now))
    prometheus = [series(prometheus_text(main=store)) for _ in counts]
    labels = {"store": "main", "variable": "users"}
    assert [value(each, "kvemb_misses_total", **labels) for each in prometheus] == [5, 5, 5, 7, 1]
    assert [value(each, "kvemb_absent_total", **labels) for each in prometheus] == [0, 3, 3, 3, 0]


# Where it goes.


def test_a_text_file_is_replaced_as_a_whole(users, store, tmp_path):
    file = tmp_path / "kvemb.prom"
    write_textfile(file, store)
    before = file.read_text()
    assert value(series(before), "kvemb_rows", store=str(store.path), variable="users") == 64
    assert (tmp_path / "store").is_dir()
    reader = open(file)  # noqa: SIM115 -- whoever reads the old file reads all of it
    users.upsert([1000], [[1, 1]])
    write_textfile(os.fspath(file), main=store)
    assert reader.read() == before
    reader.close()
    assert value(series(file.read_text()), "kvemb_rows", store="main", variable="users") == 65
    assert not os.stat(file).st_mode & 0o044 ^ 0o044, "another user, such as node_exporter's, reads it"
    for place in (tmp_path, tmp_path / "missing" / "kvemb.prom"):
        with pytest.raises(OSError, match=place.name):
            write_textfile(place, store)
    assert [*tmp_path.glob(".*"), *tmp_path.parent.glob(".*.tmp")] == []


@pytest.mark.needs("prometheus_client")
def test_the_collector_and_the_text_are_the_same_for_the_parser_of_prometheus(users, store):
    from prometheus_client import CollectorRegistry, exposition, parser

    registry = CollectorRegistry(auto_describe=True)
    collector = PrometheusCollector(**{'odd "\\\n': store})
    registry.register(collector)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(PrometheusCollector(store))

    def parsed(text: str) -> dict[str, Any]:
        families = parser.text_string_to_metric_families(text)
        return {each.name: (each.type, each.documentation, each.samples) for each in families}

    ours = parsed(prometheus_text(**{'odd "\\\n': store}))
    assert parsed(exposition.generate_latest(registry).decode()) == ours
    assert len(ours) == len(ALL)
    assert {kind for kind, _, _ in ours.values()} == {"counter", "gauge"}
    assert "odd" in repr(collector)


@pytest.mark.needs("prometheus_client")
def test_a_collector_does_not_keep_a_store(tmp_path):
    from prometheus_client import CollectorRegistry, exposition

    registry = CollectorRegistry()
    store = kvemb.open(tmp_path / "kept", memory_budget="8MiB")
    registry.register(PrometheusCollector(main=store))
    assert b'kvemb_up{store="main"} 1.0' in exposition.generate_latest(registry)
    store.close()
    assert b'kvemb_up{store="main"} 0.0' in exposition.generate_latest(registry)
    del store
    assert b"kvemb_up{" not in exposition.generate_latest(registry)


def test_without_prometheus_client_the_collector_says_what_to_install(users, store, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(errors.BackendUnavailable, match=r"pip install .*\[monitoring\]"):
        PrometheusCollector(store)
    assert "kvemb_rows" in prometheus_text(store)


# TensorBoard.


def test_scalars_are_rates_of_the_time_since_the_last_call(users, store):
    times = iter([10.0, 14.0, 14.0, 15.0, 20.0])
    sent: dict[int, dict[str, float]] = {}

    def add_scalar(tag: str, scalar_value: float, step: int) -> None:
        sent.setdefault(step, {})[tag] = scalar_value

    scalars = Scalars(SimpleNamespace(add_scalar=add_scalar), users, prefix="u", clock=lambda: next(times))
    before = users.stats
    users.lookup([*range(64), 1000, 1000])
    after = users.stats
    scalars.write(5)
    hits, misses = after.hits - before.hits, after.misses - before.misses
    first = sent.pop(5)
    assert hits + misses == 64
    assert (first["u/hits_per_second"], first["u/misses_per_second"]) == (hits / 4, misses / 4)
    assert first["u/absent_per_second"] == 2 / 4
    assert first["u/hit_rate"] == hits / 64
    assert first["u/lookup_seconds_per_second"] == (after.seconds_lookup - before.seconds_lookup) / 4 > 0
    cold = after.seconds_cold_read - before.seconds_cold_read
    assert first["u/cold_read_seconds_per_miss"] == cold / misses > 0
    assert (first["u/rows"], first["u/rows_hot"]) == (64, after.rows_hot)
    assert first["u/tier_rows/disk"] == after.tiers["disk"].rows
    written = {f"u/{figure.name}{'_per_second' * figure.counter}" for figure in OF_STATS.values()}
    assert written <= set(first)
    scalars.write(6)  # at the same time: there is no rate
    assert sent == {}
    scalars.write(7)
    assert sent[7]["u/hits_per_second"] == 0
    assert {"u/hit_rate", "u/cold_read_seconds_per_miss"} & set(sent[7]) == set()
    assert "'u' of <kvemb.Variable 'users'" in repr(scalars)


def test_scalars_of_a_store_whose_variable_was_dropped_are_not_negative(users, store):
    seconds = iter(range(9))
    sent: list[float] = []
    writer = SimpleNamespace(add_scalar=lambda _, figure, __: sent.append(figure))
    scalars = Scalars(writer, store, clock=lambda: next(seconds))
    store.drop_variable("users")
    scalars.write(1)
    assert sent
    assert min(sent) == 0
    store.close()
    scalars.write(2)


def test_a_writer_or_a_source_of_the_wrong_kind_is_refused(users, store):
    with pytest.raises(TypeError, match=r"writer must have a method add_scalar\(tag, value, step\), got"):
        Scalars(print, store)
    with pytest.raises(TypeError, match="source must be a store or a variable, got"):
        Scalars(SimpleNamespace(add_scalar=print), "store")


def test_the_page_has_each_figure_by_its_names(store, users):
    """As Python, Prometheus and TensorBoard have them."""
    sent: list[str] = []
    seconds = iter([0.0, 1.0])
    writer = SimpleNamespace(add_scalar=lambda tag, *_: sent.append(tag))
    scalars = Scalars(writer, users, clock=lambda: next(seconds))
    users.lookup([1])
    scalars.write(1)
    table = PAGE.read_text(encoding="utf-8").partition("## Names\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `(.+?)` \| `(.+?)` \| `(.+?)` \|$", table, re.MULTILINE)
    of_tiers = {f"tiers[TIER].{name}": figure.full_name for name, figure in OF_TIER.items()}
    assert {field: name for field, name, _ in told} == {
        **{name: figure.full_name for name, figure in OF_STATS.items()},
        **of_tiers,
    }
    tags = {tag.replace("/TIER", f"/{tier}") for *_, tag in told for tier in users.stats.tiers}
    assert tags == {*sent} - {"kvemb/hit_rate", "kvemb/cold_read_seconds_per_miss"}


# Progress bars.


def test_a_line_is_of_the_time_since_the_last_one(users, store):
    times = iter([10.0, 10.0, 10.5, 11.25, 12.5, 14.0])
    line, earlier = ProgressLine(store, clock=lambda: next(times)), users.stats
    users.lookup([0, 1])
    assert line.text() == "", "no time has passed"
    first = line.text()
    assert first == f"hit rate {(users.stats - earlier).hits / 2:.1%}, 4 rows/s"
    earlier = users.stats
    users.lookup([*range(64), 1000])
    assert line.text() == first, "it stays for a second"
    between = users.stats - earlier
    assert line.text() == f"hit rate {between.hits / 64:.1%}, {65 / 2:,.0f} rows/s"
    assert line.text() == "0 rows/s", "there is no hit rate of no lookups"
    assert "ProgressLine of <kvemb.Store" in repr(line)


def test_a_line_outlives_a_variable_and_counts_that_cannot_be_read(users, store):
    seconds = iter(range(0, 90, 2))
    line = ProgressLine(store, clock=lambda: next(seconds))
    store.drop_variable("users")
    assert line.text() == "0 rows/s"
    other = store.get_variable("other", dim=1)
    other.lookup([1, 2])
    assert line.text() == "1 rows/s"
    store.close()
    assert line.text() == "0 rows/s"

    class Cluster:
        hits, gone = 0, False

        @property
        def stats(self):
            if self.gone:
                raise errors.ShardLost("a shard is lost")
            return Stats(hits=self.hits)

    cluster = Cluster()
    line = ProgressLine(cluster, clock=lambda: next(seconds))
    cluster.hits = 24
    assert line.text() == (told := "hit rate 100.0%, 12 rows/s")
    cluster.gone = True
    assert line.text() == told


def test_a_line_of_the_wrong_kind_is_refused(store):
    with pytest.raises(TypeError, match="source must be a store or a variable, got"):
        ProgressLine("store")
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match=r"every_seconds must be a number of seconds, at least 0, .* got"):
            ProgressLine(store, every_seconds=wrong)
