"""Words and the keys made of them: each kind of column, and the program of the page that specifies the hash."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb.rows.words import as_words

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "string_keys.md"
EXPONENTS = {"2⁶⁴-1": 2**64 - 1, "2⁶³": 2**63}
TEXTS = ["", "a", "Paris", "Zürich", "東京", "🦆🦆", "x" * 40, "0123456789abcdef", "Paris "]


@cache
def program() -> Callable[..., int]:
    """key_of of the page's program, which is plain Python."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"kvemb": kvemb}
    exec(blocks[-1].partition("\nfor length in")[0], names)
    key_of: Callable[..., int] = names["key_of"]
    return key_of


def vectors() -> list[tuple[str, str | None, int, int]]:
    """The page's table."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"\| (.*) \| (.*) \| (.*) \| (-?\d+) \|", line):
            text, field, seed, key = match.groups()
            word = "" if text == "(empty)" else text.split("`")[1]
            if times := re.search(r", (\d+) times", text):
                word *= int(times[1])
            named = None if not field.strip() else "" if field == "(empty)" else field.strip("`")
            found.append((word, named, EXPONENTS.get(seed) or int(seed), int(key)))
    return found


def test_the_vectors_of_the_page_are_right_by_its_program_and_by_the_kernel():
    assert len(vectors()) == 24
    for word, field, seed, key in vectors():
        assert program()(word, field, seed) == key, word
        assert kvemb.hash_strings(word, field=field, seed=seed) == key, word


def test_strings_of_all_lengths_have_the_keys_of_the_program():
    chance = random.Random(5)
    lengths = [*range(0, 260, 3), 1023, 1024, 1025, 1087, 1088, 1089, 3000]
    words = ["".join(chance.choices("0123456789abcdef", k=length)) for length in lengths]
    for seed in (0, 1, 2**64 - 1, chance.randrange(2**64)):
        assert kvemb.hash_strings(words, seed=seed).tolist() == [program()(word, None, seed) for word in words]


@pytest.mark.needs("xxhash")
def test_bytes_of_all_lengths_have_the_keys_of_the_published_library():
    import xxhash

    chance = random.Random(6)
    data = [chance.randbytes(length) for length in [*range(300), 1024, 1025, 5000]]
    for seed in (0, 7, 2**63 + 5):
        expected = [xxhash.xxh3_64_intdigest(each, seed) for each in data]
        assert kvemb.hash_strings(data, seed=seed).view(np.uint64).tolist() == expected


def kinds() -> dict[str, Any]:
    """TEXTS in every kind of column that needs no package of test-all."""
    import pyarrow

    array = pyarrow.array(TEXTS)
    return {
        "tuple": tuple(TEXTS),
        "bytes": [text.encode() for text in TEXTS],
        "mixed": [TEXTS[0], *(text.encode() for text in TEXTS[1:])],
        "U": np.array(TEXTS),
        "U, the other byte order": np.array(TEXTS).astype(np.array(TEXTS).dtype.newbyteorder()),
        "U, strided": np.array([text for text in TEXTS for _ in range(2)])[::2],
        "S": np.array([text.encode() for text in TEXTS]),
        "T": np.array(TEXTS, np.dtypes.StringDType()),
        "objects": np.array(TEXTS, object),
        "Arrow": array,
        "Arrow, a slice": pyarrow.array(["before", *TEXTS, "behind"]).slice(1, len(TEXTS)),
        "Arrow, large": array.cast(pyarrow.large_string()),
        "Arrow, bytes": array.cast(pyarrow.binary()),
        "Arrow, views": array.cast(pyarrow.string_view()),
        "Arrow, a dictionary": array.dictionary_encode(),
        "Arrow, chunks": pyarrow.chunked_array([TEXTS[:3], [], TEXTS[3:]]),
        "Arrow, chunks of a dictionary": pyarrow.chunked_array([TEXTS[:3], TEXTS[3:]]).dictionary_encode(),
        "a table's column": pyarrow.table({"city": TEXTS})["city"],
    }


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_column_has_the_keys_of_a_list(kind: str) -> None:
    keys = kvemb.hash_strings(kinds()[kind])
    assert keys.dtype == np.int64
    np.testing.assert_array_equal(keys, kvemb.hash_strings(TEXTS))


@pytest.mark.needs("pandas", "polars")
@pytest.mark.filterwarnings("ignore:.*Pandas4Warning")
def test_columns_of_pandas_and_polars_have_the_keys_of_a_list():
    import pandas
    import polars

    series = pandas.Series(TEXTS)
    columns = [series, series.astype(object), series.astype("category"), series.to_numpy(), pandas.Index(TEXTS)]
    columns += [pandas.Categorical(TEXTS), series.to_frame("city")["city"], pandas.Series(TEXTS, dtype="string")]
    columns += [pandas.Series(TEXTS, dtype="string[python]"), pandas.Series(TEXTS, dtype="string[pyarrow]")]
    columns += [polars.Series(TEXTS), polars.Series(TEXTS).cast(polars.Categorical)]
    for column in columns:
        np.testing.assert_array_equal(kvemb.hash_strings(column), kvemb.hash_strings(TEXTS))
    for column in (
        pandas.Series(["a", None]),
        pandas.Series(["a", float("nan")], dtype=object),
        pandas.Series(["a", None], dtype="string[python]"),
        polars.Series(["a", None]),
    ):
        assert kvemb.hash_strings(column, missing=-1)[1] == -1


def test_without_pyarrow_a_column_is_read_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Column:
        def __arrow_c_stream__(self, schema: object = None) -> None:
            raise AssertionError("is not asked")

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.array(TEXTS, object)

    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    np.testing.assert_array_equal(kvemb.hash_strings(Column()), kvemb.hash_strings(TEXTS))


def test_the_shape_is_that_of_the_values():
    assert kvemb.hash_strings("a").shape == ()
    assert kvemb.hash_strings([]).shape == (0,)
    assert kvemb.hash_strings(np.empty((0, 3), "U5")).shape == (0, 3)
    nested = kvemb.hash_strings([["a", "b"], ["c", "a"]])
    assert nested.shape == (2, 2)
    assert nested.reshape(-1).tolist() == kvemb.hash_strings(["a", "b", "c", "a"]).tolist()
    np.testing.assert_array_equal(kvemb.hash_strings(np.array([["a", "b"], ["c", "a"]], "S")), nested)


def test_a_field_and_a_seed_make_other_keys():
    keys = {
        int(kvemb.hash_strings("Paris", field=field, seed=seed))
        for field in (None, "", "city", "name")
        for seed in (0, 1)
    }
    assert len(keys) == 8


def test_missing_values_have_the_key_that_is_given_or_raise():
    import pyarrow

    for values in (["a", None], ["a", float("nan")], np.array(["a", None], object), pyarrow.array(["a", None])):
        assert kvemb.hash_strings(values, missing=-1).tolist() == [int(kvemb.hash_strings("a")), -1]
        with pytest.raises(ValueError, match="the value at position 1 is missing"):
            kvemb.hash_strings(values)
    assert kvemb.hash_strings(pyarrow.nulls(2), missing=5).tolist() == [5, 5]


@pytest.mark.parametrize(
    ("values", "error", "match"),
    [
        (["a", 5], TypeError, r"must be strings, got int 5 at position 1"),
        ([1, 2], TypeError, r"got int 1 at position 0"),
        (np.arange(3), TypeError, r"got int64; integers are keys"),
        (np.zeros(2), TypeError, r"got float64"),
        ({"a"}, TypeError, r"got set; pass list\(values\)"),
        (iter(["a"]), TypeError, r"pass list\(values\)"),
        ([["a"], ["b", "c"]], ValueError, r"rectangular"),
        (["a", "\ud800"], ValueError, r"at position 1.*surrogate"),
        (np.array(["a", "\ud800"]), ValueError, r"at position 1.*surrogate"),
        (["a", b"b", "\ud800"], ValueError, r"at position 2.*surrogate"),
        (np.ma.masked_array(["a"], [True]), TypeError, r"masked"),
    ],
)
def test_what_is_not_a_string_is_refused(values: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        kvemb.hash_strings(values)


def test_a_column_of_numbers_is_refused():
    import pyarrow

    with pytest.raises(TypeError, match="got a column of int64"):
        kvemb.hash_strings(pyarrow.array([1, 2]))
    with pytest.raises(TypeError, match="got a column of int64"):
        kvemb.hash_strings(pyarrow.array([1, 2]).dictionary_encode())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"seed": -1}, ValueError),
        ({"seed": 2**64}, ValueError),
        ({"field": 3}, TypeError),
        ({"missing": 2**63}, ValueError),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        kvemb.hash_strings(["a"], **options)


def test_words_of_a_list_are_their_bytes_one_after_the_other():
    words = as_words(["é", "", "a\0", b"\xff"])
    assert (words.data.tobytes(), words.offsets.tolist()) == ("éa\0".encode() + b"\xff", [0, 2, 2, 4, 5])
    assert [words.word(at) for at in range(3)] == ["é".encode(), b"", b"a\0"]
    assert (len(as_words([])), as_words([""]).word(0)) == (0, b"")


@pytest.mark.independent
@pytest.mark.parametrize("kind", [list, tuple, partial(np.array, dtype=object)])
@pytest.mark.parametrize("count", [32_767, 32_768, 32_769, 70_000])
def test_objects_longer_than_a_piece_have_the_keys_of_a_column(kind: Callable[[Any], Any], count: int) -> None:
    import pyarrow

    words: list[str | None] = [f"word {at}" for at in range(count)]
    words[-1], words[5], words[6], words[7] = "a\0", "a\0b", "", None
    words[8:11] = ["é" * 1000, "long" * 2**20, "東京"]  # more bytes than there is room for at first
    column = pyarrow.array(words)
    np.testing.assert_array_equal(kvemb.hash_strings(kind(words), missing=7), kvemb.hash_strings(column, missing=7))
    mixed = [each.encode() if each and at % 3 else each for at, each in enumerate(words)]
    np.testing.assert_array_equal(kvemb.hash_strings(kind(mixed), missing=7), kvemb.hash_strings(column, missing=7))


def test_numpys_own_strings_and_several_kinds_of_missing_values_may_be_mixed():
    values = [np.str_("é"), np.bytes_(b"b"), None, float("nan"), np.nan, None, "c", b"d"]
    keys = [-1 if np.isin(at, [2, 3, 4, 5]) else int(kvemb.hash_strings(each)) for at, each in enumerate(values)]
    for each in (values, np.array(values, object)):
        assert kvemb.hash_strings(each, missing=-1).tolist() == keys


def test_words_are_their_bytes_one_after_the_other():
    words = as_words(np.array(["é", "", "abc"]))
    assert words.data.tobytes() == "éabc".encode()
    assert words.offsets.tolist() == [0, 2, 2, 5]
    assert (len(words), words.present, words.shape) == (3, None, (3,))


def test_a_large_column_has_the_keys_of_its_parts():
    values = np.arange(140_001).astype("S7")
    parts = [kvemb.hash_strings(values[at : at + 50_000], field="a") for at in range(0, len(values), 50_000)]
    assert (kvemb.hash_strings(values, field="a") == np.concatenate(parts)).all()


def test_chunks_of_a_column_are_one_column():
    pyarrow = pytest.importorskip("pyarrow")
    whole = ["a", None, "bc", "", "d"]
    for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())):
        for chunks in ([], [[]], [whole[:2], [], whole[2:]], [whole]):
            column = pyarrow.chunked_array([pyarrow.array(each, kind) for each in chunks], kind)
            wanted = kvemb.hash_strings(column.to_pylist(), missing=7)
            assert (kvemb.hash_strings(column, missing=7) == wanted).all(), (kind, chunks)
