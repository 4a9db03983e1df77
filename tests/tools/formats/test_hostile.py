"""Sources that are damaged, or meant to do damage: one clear error, soon, in little memory."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run_python
from quick import quick

from kvemb.tools.failures import BadInput
from kvemb.tools.formats.columns import MAX_WIDTH, SourceOptions
from kvemb.tools.formats.known import FORMATS
from kvemb.tools.importing import import_table

pa = pytest.importorskip("pyarrow")


def batch(offsets: list[int], *, large: bool = False) -> Any:
    """A record batch with a list column of these offsets over 12 numbers."""
    values = pa.array(np.arange(12, dtype=np.float32))
    made = (pa.LargeListArray if large else pa.ListArray).from_arrays(
        pa.array(offsets, None if large else pa.int32()), values
    )
    return pa.RecordBatch.from_arrays([pa.array(np.arange(len(made))), made], names=["key", "value"])


def forged(path: Path, true: bytes, false: bytes) -> None:
    """Write other bytes over some of a file: pyarrow writes nothing that is not sound."""
    content = path.read_bytes()
    assert true in content
    path.write_bytes(content.replace(true, false))


def write_arrow(path: Path, rows: Any, *, stream: bool = False) -> Path:
    begin = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, begin(file, rows.schema) as writer:
        writer.write_batch(rows)
    return path


OUTSIDE = ([0, -2, -4, -6], [-2, 0, 2, 4], [0, 5, 2, 7], [0, 10, 20, 30], [9, 11, 13, 15])


@pytest.mark.slow
def test_offsets_of_lists_that_point_outside_are_refused(tmp_path):
    """In a process of its own: what is read out of bounds may end it."""
    names = []
    for at, (offsets, large, stream) in enumerate(itertools.product(OUTSIDE, (False, True), (False, True))):
        true, dtype = [0, 2, 4, 6], np.int64 if large else np.int32
        path = write_arrow(tmp_path / f"{at}.arrow", batch(true, large=large), stream=stream)
        forged(path, np.array(true, dtype).tobytes(), np.array(offsets, dtype).tobytes())
        names.append(path.name)
    code = (
        f"from kvemb.tools.cli import run\nfor name in {names}: print(name, run(['import', name, 'new']), flush=True)"
    )
    done = run_python(code, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"{name} 1" for name in names]), done.stderr
    for name, line in zip(names, done.stderr.splitlines(), strict=True):
        assert line.startswith(f"kvemb: {name} is damaged: ")
    assert not (tmp_path / "new").exists()


def test_lists_of_a_fixed_size_that_point_outside_are_refused(tmp_path):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2000, np.float32)), 2)
    write_arrow(tmp_path / "in.arrow", pa.RecordBatch.from_arrays([pa.array(np.arange(1000)), lists], ["key", "value"]))
    forged(tmp_path / "in.arrow", struct.pack("<qq", 2000, 0), struct.pack("<qq", 20, 0))
    with pytest.raises(BadInput, match=r"in\.arrow is damaged"):
        import_table(tmp_path / "in.arrow", tmp_path / "new")


def test_sound_lists_of_any_offset_come_in(tmp_path):
    write_arrow(tmp_path / "in.arrow", batch([2, 4, 6, 8]))
    import_table(tmp_path / "in.arrow", tmp_path / "new")
    _, read = FORMATS["arrow"].read(tmp_path / "in.arrow", SourceOptions())
    assert np.concatenate([part["value"] for part in read(["key", "value"])]).tolist() == [[2, 3], [4, 5], [6, 7]]


def npy(shape: tuple[int, ...], data: bytes = b"", descr: str = "<f4") -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("value", npy((2**40, 4)), "value.npy cannot be read"),
        ("key", b"", "key.npy cannot be read"),
        ("key", b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': (".ljust(118), "key.npy cannot be read"),
        ("value", npy((2**62, 8), b"12345678"), "value.npy cannot be read"),
        ("value", npy((-3, 4), b"x" * 48), "value.npy cannot be read"),
        ("value", npy((3, 2**40)), "value.npy cannot be read"),
        ("value", npy((3, 0)), "the source has no rows and does not give their dim"),
        ("key", npy((2**50,), descr="|V0"), "cannot be read|must hold integers"),
        ("key", npy((3,), b"x" * 24, "|S8"), "'key' of .* must hold integers, got .S8"),
        ("key", npy((3,), b"\0" * 24, "<f8"), "'key' of .* must hold integers, got float64"),
        ("value", npy((3, 2), b"\0" * 48, "<c8"), "'value' of .* must hold numbers, got complex64"),
        ("value", npy((3, 2), b"\0" * 48, "<M8[s]"), "'value' of .* must hold numbers, got datetime64"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_headers_of_arrays_that_cannot_be_are_refused(tmp_path, name, content, line):
    (tmp_path / "in.npy").mkdir()
    np.save(tmp_path / "in.npy" / "key.npy", np.arange(3))
    np.save(tmp_path / "in.npy" / "value.npy", np.ones((3, 2), np.float32))
    (tmp_path / "in.npy" / f"{name}.npy").write_bytes(content)
    with pytest.raises(BadInput, match=line):
        import_table(tmp_path / "in.npy", tmp_path / "new", value_dtype="float32")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("offsets", "shape", "dtype"),
    [([24, 2**40], [3, 2**36], "F32"), ([24, 8], [3, 2], "F32"), ([-8, 16], [3, 2], "F32"), ([24, 48], [3, 9], "F32")],
)
def test_tensors_that_lie_outside_their_file_are_refused(tmp_path, offsets, shape, dtype):
    pytest.importorskip("safetensors")
    head = {
        "key": {"dtype": "I64", "shape": [3], "data_offsets": [0, 24]},
        "value": {"dtype": dtype, "shape": shape, "data_offsets": offsets},
    }
    text = json.dumps(head).encode()
    (tmp_path / "in.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(48))
    with pytest.raises(BadInput, match="cannot be read"):
        import_table(tmp_path / "in.safetensors", tmp_path / "new")


def _hugectr(place: Path) -> None:
    place.mkdir()
    np.arange(1).tofile(place / "key")
    np.zeros(MAX_WIDTH + 1, np.float32).tofile(place / "emb_vector")


def _npy(place: Path) -> None:
    place.mkdir()
    np.save(place / "key.npy", np.arange(1))
    np.save(place / "value.npy", np.zeros((1, MAX_WIDTH + 1), np.float32))


def _arrow(place: Path) -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(MAX_WIDTH + 1, np.float32)), MAX_WIDTH + 1)
    write_arrow(place, pa.RecordBatch.from_arrays([pa.array([1]), lists], names=["key", "value"]))


def _words(place: Path) -> None:
    place.write_text(f"1 {MAX_WIDTH + 1}\n")


@pytest.mark.parametrize(
    ("format", "write"),
    [("hugectr", _hugectr), ("npy", _npy), ("arrow", _arrow), ("word2vec", _words), ("word2vec-binary", _words)],
)
def test_rows_of_no_possible_length_are_refused(tmp_path, format, write):
    write(tmp_path / "in")
    with pytest.raises(BadInput, match="says that a row has 1,048,577 numbers; a row can have at most 1,048,576"):
        import_table(tmp_path / "in", tmp_path / "new", format=format)


def test_long_rows_are_read_few_at_a_time(tmp_path):
    (tmp_path / "in").mkdir()
    np.arange(5).tofile(tmp_path / "in" / "key")
    np.zeros((5, MAX_WIDTH), np.float32).tofile(tmp_path / "in" / "emb_vector")
    _, read = FORMATS["hugectr"].read(tmp_path / "in", SourceOptions())
    assert [len(part["key"]) for part in read(["key", "value"])] == [3, 2]


def test_one_great_batch_of_arrow_is_read_in_pieces(tmp_path):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(400_000, np.float32)), 4)
    write_arrow(tmp_path / "in", pa.RecordBatch.from_arrays([pa.array(np.arange(100_000)), lists], ["key", "value"]))
    _, read = FORMATS["arrow"].read(tmp_path / "in", SourceOptions())
    assert [len(part["key"]) for part in read(["key", "value"])] == [32_768] * 3 + [1_696]


# These calls take a tenth of a second. The limit is for work that grows with the square of the text.
MAX_SECONDS = 60


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds of all threads."""
    began = time.process_time()
    call()
    return time.process_time() - began


@pytest.mark.parametrize(
    ("format", "content", "line"),
    [
        ("word2vec-binary", b"1 4\n" + b"x" * 3_000_000, "has a key of more than 1,024 bytes, b'xxxx"),
        ("word2vec-binary", b"1 4\n" + b"1" * 3_000_000, "has a key of more than 1,024 bytes, b'1111"),
        ("word2vec", b"2 3\n1 " + b"1" * 200 + b" 1 1\n", "has the number 1.11111e\\+199, too large for float32"),
        ("word2vec", b"1 1\n1 " + b"1" * 9_000_000, "has the number inf|too large|more than 1 MiB|not a number|1,024"),
        ("csv", b"key," + b",".join(b"value_%d" % at for at in range(200_000)) + b"\n", "more than 1,048,576 bytes"),
        ("csv", b"key," + b",".join(b"v_%d" % at for at in range(50_000)) + b"\n", "has 50,001 columns, at most"),
        ("csv", b'key,"value' + b"x" * 200_000 + b"\n", "has a first line that cannot be read: field larger"),
    ],
)
def test_text_without_an_end_is_refused_soon(tmp_path, format, content, line):
    def refused() -> None:
        with pytest.raises(BadInput, match=line):
            import_table(io.BytesIO(content), tmp_path / "new", format=format)

    assert seconds(refused) < MAX_SECONDS
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_as_many_columns_as_a_csv_may_have_come_in_soon(tmp_path):
    count = 16_383
    text = b"key," + b",".join(b"value_%d" % at for at in range(count)) + b"\n1" + b",0.5" * count + b"\n"
    assert seconds(lambda: import_table(io.BytesIO(text), tmp_path / "new", format="csv")) < MAX_SECONDS


def limited(arguments: list[str], cwd: Path, max_bytes: int) -> subprocess.CompletedProcess[str]:
    """Run the command with so much memory to write to."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))

    return run_python("from kvemb.tools import main; main()", *arguments, cwd=cwd, preexec_fn=limit)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mapped memory on Linux alone")
@pytest.mark.parametrize("line", quick([b"x" * 1023 + b"\n", b"x", b"a\tb\tc\n"], first=2))
def test_a_small_gzip_does_not_exhaust_the_memory(tmp_path, line):
    # A file of many members is the text of all of them.
    member = gzip.compress(line * ((1 << 20) // len(line)), 1)
    (tmp_path / "train.csv.gz").write_bytes(member * 300)
    done = limited(["import", "train.csv.gz", "new"], tmp_path, 1 << 30)
    assert done.returncode == 1, done.stderr
    assert "train.csv.gz" in done.stderr
    assert done.stderr.count("\n") == 1
