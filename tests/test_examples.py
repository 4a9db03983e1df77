"""The programs in examples/ have --help, run from an empty directory, and learn.

Those of JAX and Keras run in processes of their own: JAX warns of every fork after its import, and a process has one
backend of Keras.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from waiting import wait_until

import kvemb
import kvemb.cluster

EXAMPLES = Path(__file__).parents[1] / "examples"
# Keras' variables do not know an argument of NumPy 2's protocol, and its exports give JAX an argument of old.
KNOWN = ["-W", "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"]
KNOWN += ["-W", "ignore:The `native_serialization` parameter is deprecated:DeprecationWarning"]
# Runs an example with each of several lists of arguments.
PROGRAM = """
import json, os, runpy, sys

path, runs = sys.argv[1], json.loads(sys.argv[2])
sys.path.insert(0, os.path.dirname(path))
for words in runs:
    sys.argv = [path, *words]
    runpy.run_path(path, run_name="__main__")
    print("END OF RUN")
"""
# Ends an example at once when it asks for the batch of a step, and at least one checkpoint is complete.
KILLED = """
import os, pathlib, runpy, sys, time

path, step, series = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
sys.path.insert(0, os.path.dirname(path))
import dlrm

batch = dlrm.batch


def until_killed(number, size):
    if number == step:
        while not any(series.glob("0*")):
            time.sleep(0.01)
        os._exit(9)
    return batch(number, size)


dlrm.batch = until_killed
sys.argv = sys.argv[:1] + sys.argv[4:]
dlrm.main()
"""


def process(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a directory, with warnings as errors."""
    command = [sys.executable, "-W", "error", *KNOWN, *words]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=600)


class Examples:
    """Runs examples in this process, in a directory of their own, as `python EXAMPLE ARGUMENTS` does."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capsys = monkeypatch, capsys
        monkeypatch.chdir(place)

    def printed(self, example: str, *runs: list[str]) -> list[str]:
        """Return what an example prints, for each of its lists of arguments."""
        return [self._run(str(EXAMPLES / f"{example}.py"), words) for words in runs]

    def _run(self, path: str, words: list[str]) -> str:
        self.patch.setattr(sys, "argv", [path, *words])
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
        return self.capsys.readouterr().out


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Examples:
    return Examples(tmp_path, monkeypatch, capsys)


def printed_elsewhere(place: Path, example: str, *runs: list[str]) -> list[str]:
    """Return what an example prints in a process of its own, which its framework needs."""
    done = process(place, "-c", PROGRAM, str(EXAMPLES / f"{example}.py"), json.dumps(runs))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("END OF RUN\n")[:-1]


def figure(name: str, text: str) -> float:
    """Return the first number of the line with this name."""
    found = re.search(rf"^{name}\s+([0-9.]+)", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def check_that_it_learned(text: str) -> None:
    found = re.search(r"^loss\s+([0-9.]+) -> ([0-9.]+)", text, re.MULTILINE)
    assert found, text
    first, last = map(float, found.groups())
    assert last < 0.95 * first


def check_help(text: str, example: str) -> None:
    assert text.startswith(f"usage: {example}.py")
    assert "default:" in text, "options say their defaults"
    assert f"python examples/{example}.py" in text, "it says how to run it"


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_two_towers_find_items(examples: Examples) -> None:
    small = ["--steps", "150", "--batch", "128"]
    described, first, second = examples.printed("two_towers", ["--help"], small, ["--steps", "1"])
    check_help(described, "two_towers")
    check_that_it_learned(first)
    assert figure("recall@10", first) > 0.1, "by chance 0.004"
    assert "continues after step 150\n" in second


@pytest.mark.slow
@pytest.mark.needs("torch", "fastapi", "uvicorn")
def test_a_model_is_served_over_http_and_moves_to_a_newer_checkpoint(examples: Examples, tmp_path: Path) -> None:
    (described,) = examples.printed("http_serving", ["--help"])
    (first,) = printed_elsewhere(tmp_path, "http_serving", ["--train", "200"])
    check_help(described, "http_serving")
    assert figure("loss", first) < 0.2, "by chance 0.69"
    command = [sys.executable, "-W", "error", *KNOWN, str(EXAMPLES / "http_serving.py"), "--serve", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
        try:
            log = iter(server.stderr or [])
            address = next(found[0] for line in log if (found := re.search(r"http://[\d.:]+", line)))

            def asked(what: str) -> dict[str, Any]:
                with urlopen(f"{address}/{what}", timeout=60) as answer:
                    found: dict[str, Any] = json.loads(answer.read())
                return found

            query = "scores?user=aad&item=aak&item=bit&item=new"
            scores, served = asked(query)["scores"], asked("checkpoint")
            assert scores["aak"] > 0.8 > 0.2 > scores["bit"], "liked, and not liked"
            printed_elsewhere(tmp_path, "http_serving", ["--train", "100"])
            wait_until(lambda: asked("checkpoint") != served)
            assert asked(query)["scores"]["aak"] > 0.8
            alone = asked("scores?user=nobody&item=aak&item=nothing")["scores"]
            assert alone["aak"] == alone["nothing"], "rows of zeros: the dense part alone"
        finally:
            server.terminate()
            rest = server.stderr.read() if server.stderr else ""
    assert "Traceback" not in rest, rest


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_sequences_predict_the_next_item(examples: Examples) -> None:
    small = ["--steps", "100", "--batch", "32", "--length", "12", "--samples", "64"]
    described, first, second = examples.printed("sequences", ["--help"], small, ["--steps", "1"])
    check_help(described, "sequences")
    check_that_it_learned(first)
    assert figure("hits@10", first) > 0.05, "by chance 0.005"
    assert "continues after step 100\n" in second


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_knowledge_graph_ranks_triples_that_it_was_not_trained_on(examples: Examples, tmp_path: Path) -> None:
    names = ["", "Zürich", "Basel", "Bern", "Genf"]
    lines = [f"{a}\tborders\t{b}\n" for a in names[1:] for b in names[1:] if a != b]
    (tmp_path / "train.txt").write_text("".join(lines[1:]), encoding="utf-8")
    (tmp_path / "test.txt").write_text(lines[0], encoding="utf-8")
    small = ["--steps", "200", "--dim", "32"]
    files = ["--triples", "train.txt", "test.txt", "--steps", "60", "--samples", "4", "--path", "of_files"]
    described, generated, read = examples.printed("knowledge_graph", ["--help"], small, files)
    check_help(described, "knowledge_graph")
    check_that_it_learned(generated)
    assert figure("MRR", generated) > 0.1, "by chance 0.01"
    assert "of 2 new questions" in read
    assert figure("rows", read) == 6, "four entities, and two rows of the relation"


@pytest.mark.slow
def test_a_follower_serves_what_is_trained_and_a_replica_has_the_same(examples: Examples) -> None:
    described, text = examples.printed("serving", ["--help"], ["--steps", "200"])
    check_help(described, "serving")
    check_that_it_learned(text)
    copied = re.search(r"the delta copied ([0-9,]+); loss ([0-9.]+)$", text, re.MULTILINE)
    assert copied, text
    assert copied[1] != "0"
    assert f"-> {copied[2]} after" in text, "the same rows give the same loss"


@pytest.mark.slow
@pytest.mark.needs("jax")
def test_bags_in_jax_learn(tmp_path: Path) -> None:
    first, second = printed_elsewhere(tmp_path, "jax_bags", ["--steps", "40"], ["--steps", "1"])
    check_that_it_learned(first)
    assert "continues after step 40\n" in second


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_dlrm_that_was_killed_ends_as_one_that_was_not(examples: Examples, tmp_path: Path) -> None:
    words = ["--steps", "40", "--save-every", "20", "--batch", "256"]
    cut, whole = ([*words, "--path", name] for name in ("cut", "whole"))
    killed = process(tmp_path, "-c", KILLED, str(EXAMPLES / "dlrm.py"), "30", "cut/checkpoints", *cut)
    assert killed.returncode == 9, killed.stderr
    described, resumed, undisturbed = examples.printed("dlrm", ["--help"], cut, whole)
    check_help(described, "dlrm")
    assert "continues at step 20\n" in resumed
    check_that_it_learned(undisturbed)
    ends = [kvemb.CheckpointManager(tmp_path / name / "checkpoints").latest() for name in ("cut", "whole")]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0].extra == ends[1].extra == {"step": 40}
    check_equal_rows(ends[0], ends[1])
    check_equal_tensors(ends[0].files["train.pt"], ends[1].files["train.pt"])


@pytest.mark.slow
@pytest.mark.needs("torch", "keras")
def test_the_ranking_in_keras_goes_on_and_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    runs = [["--epochs", "1", "--ratings", "10000"], ["--epochs", "2", "--ratings", "10000"]]
    first, second = printed_elsewhere(tmp_path, "keras_ranking", *runs)
    assert (figure("epochs done", first), figure("epochs done", second)) == (0, 1)
    assert figure("squared error", second) < figure("variance", second)


@pytest.mark.slow
@pytest.mark.needs("tensorflow", "keras")
def test_the_two_channels_go_on_learn_and_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    runs = [["--epochs", "1", "--count", "40000"], ["--epochs", "3", "--count", "40000"]]
    first, second = printed_elsewhere(tmp_path, "movielens_two_channels", *runs)
    assert (figure("epochs done", first), figure("epochs done", second)) == (0, 1)
    assert figure("accuracy", second) > figure("most common", second)
    assert "served       the same bits" in first
    assert "served       the same bits" in second


@pytest.mark.slow
@pytest.mark.needs("tensorflow", "keras")
def test_reviews_of_games_are_learned_bounded_resumed_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    small = ["--count", "5000", "--max-rows", "4000"]
    first, again = printed_elsewhere(tmp_path, "video_games", *[["--epochs", "3", *small]] * 2)
    check_the_same_after_loading(first, again, 3)
    assert figure("rows", first) == 3200
    assert figure("AUC", first) > 0.7, "by chance 0.5; 0.79 to 0.85 with five seeds"


@pytest.mark.slow
@pytest.mark.needs("tensorflow", "keras")
def test_a_dlrm_in_keras_learns_resumes_and_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    first, again = printed_elsewhere(tmp_path, "dlrm_keras", *[["--epochs", "2", "--count", "5000"]] * 2)
    check_the_same_after_loading(first, again, 2)
    assert figure("AUC", first) > 0.65, "by chance 0.5; 0.72 to 0.75 with five seeds"


def check_the_same_after_loading(first: str, again: str, epochs: int) -> None:
    """A run that trains, and the same run again, which has nothing to train: it loads, and exports what it loaded."""
    assert (figure("epochs done", first), figure("epochs done", again)) == (0, epochs)
    assert figure("loss", first) == figure("loss", again)
    assert "served       the same bits" in first
    assert "served       the same bits" in again


@pytest.mark.slow
@pytest.mark.needs("tensorflow", "keras", "jax")
def test_several_workers_train_as_one(tmp_path: Path) -> None:
    """And one worker goes on where two have ended."""
    small, one = ["--count", "5000", "--dim", "8"], ["--workers", "1", "--place", "one"]
    (two,) = printed_elsewhere(tmp_path, "movielens_workers", [*small, "--place", "two"])
    runs = [[*small, *one], [*small, *one, "--place", "two", "--epochs", "2"]]
    alone, more = printed_elsewhere(tmp_path, "movielens_workers", *runs)
    assert [figure("workers", each) for each in (two, alone, more)] == [2, 1, 1]
    assert [figure("epochs done", each) for each in (two, alone, more)] == [0, 0, 1]
    assert figure("loss", two) == pytest.approx(figure("loss", alone), abs=1e-6)
    assert figure("loss", more) < figure("loss", two)
    assert all(float(each.split("differs by")[1]) < 1e-6 for each in (two, alone, more))


# The second rank, which has imported Ray before: it fails when it asks for the batch of a step and a checkpoint is
# complete.
FAILING_RANK = "import ray\n" + (
    KILLED.replace("import dlrm\n", "import dlrm, dlrm_on_ranks\n")
    .replace("os._exit(9)", 'raise ValueError("boom")')
    .replace("dlrm.batch = until_killed", "dlrm_on_ranks.batch = until_killed")
    .replace("dlrm.main()", "dlrm_on_ranks.main()")
)


def on_ranks(place: Path, *ranks: list[str]) -> list[tuple[int, str]]:
    """Run Python on ranks, with another Ray than any that runs here; returns each one's exit code and output."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
    common = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_ADDRESS": "local", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(number), "PYTHONPATH": str(EXAMPLES)}
    common.pop("RAY_AUTH_MODE", None)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    begun = [
        subprocess.Popen(
            [sys.executable, *words], cwd=place, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes
        )
        for rank, words in enumerate(ranks)
    ]
    told = [rank.communicate(timeout=600)[0] for rank in begun]
    return [(rank.returncode, text) for rank, text in zip(begun, told, strict=True)]


@pytest.mark.slow
@pytest.mark.needs("torch", "ray")
def test_a_dlrm_on_ranks_of_which_one_fails_resumes_and_ends_as_one_process(tmp_path: Path) -> None:
    """Ray is started by the first rank, with its tokens, of which the second one knows nothing."""
    example, words = str(EXAMPLES / "dlrm_on_ranks.py"), ["--save-every", "6", "--batch", "128", "--path", "cut"]
    words += ["--memory-budget", "32MiB", "--steps", "12"]
    failing = ["-c", FAILING_RANK, example, "8", "cut/checkpoints", *words]
    (code, first), (its_code, second) = on_ranks(tmp_path, [example, *words], failing)
    assert (code, its_code) == (1, 1), first + second
    assert "RankLost: rank 1 has ended: ValueError: boom; start all ranks again" in first
    assert second.rstrip().endswith("ValueError: boom")
    assert kvemb.cluster.latest(tmp_path / "cut")[1].extra == {"step": 6}
    (code, first), (its_code, second) = on_ranks(tmp_path, [example, *words], [example, *words])
    assert (code, its_code) == (0, 0), first + second
    assert "continues at step 6\n" in first
    number, checkpoint = kvemb.cluster.latest(tmp_path / "cut")
    assert checkpoint.extra == {"step": 12}
    sys.path.insert(0, str(EXAMPLES))
    try:
        check_that_one_process_has_the_same(tmp_path, number)
    finally:
        sys.path.remove(str(EXAMPLES))


def check_that_one_process_has_the_same(place: Path, number: int) -> None:
    import dlrm
    import torch

    import kvemb.torch as kt

    with kvemb.open(place / "whole", memory_budget="64MiB") as store:
        torch.manual_seed(0)
        model = dlrm.DLRM(8)
        optimizers = kt.Optimizer(model), torch.optim.Adam(model.parameters(), 0.003)
        for step in range(12):
            numbers, ids, clicked = dlrm.batch(step, 128)
            dlrm.loss_of(model(numbers, ids), clicked).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        one = kvemb.restore(place / "cut", place / "one")
        assert len(store.variables) == len(one.variables) == 26
        for name in store.variables:
            expected, found = (each.variables[name].export(with_scores=True) for each in (store, one))
            assert np.array_equal(expected[0], found[0]), name
            # Adagrad's first step turns the rounding of a gradient near 0 into a part of its rate, 0.05.
            np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-3, err_msg=name)
            np.testing.assert_array_equal(found[2], expected[2], err_msg=name)
        one.close()
    files = kvemb.cluster.pull_files(place / "cut", place / "files", number=number)
    dense = torch.load(files["train.pt"], weights_only=True)["model"]
    parameters = {name: value for name, value in model.named_parameters() if not name.endswith("anchor")}
    assert dense.keys() >= parameters.keys()
    for name, value in parameters.items():
        np.testing.assert_allclose(dense[name].numpy(), value.detach().numpy(), rtol=1e-3, atol=1e-4, err_msg=name)


def check_equal_rows(one: kvemb.Checkpoint, other: kvemb.Checkpoint) -> None:
    assert len(one.variables) == 26
    with kvemb.open(one.path, read_only=True) as first, kvemb.open(other.path, read_only=True) as second:
        for name in one.variables:
            keys, values, slots, scores = first.variables[name].export(with_slots=True, with_scores=True)
            its_keys, its_values, its_slots, its_scores = second.variables[name].export(
                with_slots=True, with_scores=True
            )
            assert np.array_equal(keys, its_keys), name
            assert np.array_equal(values, its_values), name
            assert slots.keys() == its_slots.keys() == {"accumulator"}
            assert np.array_equal(slots["accumulator"], its_slots["accumulator"]), name
            assert np.array_equal(scores, its_scores), name


def check_equal_tensors(one: Path, other: Path) -> None:
    import torch

    def flat(value: object) -> list[object]:
        if isinstance(value, dict):
            return [leaf for key in value for leaf in [key, *flat(value[key])]]
        if isinstance(value, list | tuple):
            return [leaf for each in value for leaf in flat(each)]
        return [value.tolist() if isinstance(value, torch.Tensor) else value]

    first, second = (torch.load(path, weights_only=True) for path in (one, other))
    assert first.keys() == {"model", "dense", "rows"}
    for state in (first, second):  # which store the rows are in
        assert state["model"].pop("tables._extra_state").numel()
    assert flat(first) == flat(second)
