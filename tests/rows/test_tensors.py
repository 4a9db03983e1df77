"""PyTorch tensors as arguments: the numbers they hold, or one error that says what to pass."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.optimizers import SGD
from kvemb.tools.failures import BadInput
from kvemb.tools.importing import import_table

torch = pytest.importorskip("torch", reason="torch is not installed; it is of kvemb[test-all]")
# PyTorch warns of what it will leave out one day.
pytestmark = [pytest.mark.needs("torch"), pytest.mark.filterwarnings("ignore::UserWarning")]
ROWS = [[1.5, -2.0, 0.25], [4.0, 0.5, -1.0]]


def quantised(data=ROWS):
    return torch.quantize_per_tensor(torch.tensor(data), 0.25, 0, torch.qint8)


BAD = {
    "requires gradients": lambda: torch.tensor(ROWS).requires_grad_(),
    "is sparse": lambda: torch.tensor(ROWS).to_sparse(),
    "is quantised": quantised,
    "on the device 'meta'": lambda: torch.empty(2, 3, device="meta"),
    "is nested": lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(3)]),
}
DTYPES = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.fixture
def table(store):
    variable = store.get_variable("table", dim=3, optimizer=SGD(1.0))
    variable.upsert([1, 2], np.array(ROWS, np.float32))
    return variable


@pytest.mark.parametrize("what", BAD)
def test_a_tensor_whose_numbers_are_not_there_is_refused_by_name(table, what):
    rows, good, before = BAD[what](), np.zeros((2, 3), np.float32), table.export()
    for call, name in (
        (lambda: table.upsert([1, 2], rows), "values"),
        (lambda: table.apply_gradients([1, 2], rows), "grads"),
        (lambda: table.accum([1, 2], rows, good, [True, True]), "old_values"),
        (lambda: table.accum([1, 2], good, rows, [True, True]), "new_values"),
        (lambda: table.accum([1, 2], good, good, rows), "exists"),
        (lambda: table.lookup(rows), "keys"),
        (lambda: table.upsert(rows, good), "keys"),
        (lambda: table.remove(rows), "keys"),
        (lambda: table.prefetch(rows), "keys"),
    ):
        with pytest.raises(TypeError, match=f"{name} must be a plain tensor or an array, got a tensor that .*{what}"):
            call()
    np.testing.assert_array_equal(table.export()[1], before[1])


def test_keys_that_are_flags_or_floats_are_refused(table):
    for keys, name in ((torch.tensor([True, False]), "bool"), (torch.tensor([1.0, 2.0]), "float32")):
        for call in (lambda keys=keys: table.lookup(keys), lambda keys=keys: table.remove(keys)):
            with pytest.raises(TypeError, match=f"keys must be int64, got {name}"):
                call()
    assert table.size() == 2


def test_gradients_that_are_rows_are_told_apart(table):
    rows = torch.from_numpy(table.lookup([1, 2])).requires_grad_()
    with pytest.raises(TypeError, match=r"pass rows\.grad or grads\.detach\(\)"):
        table.apply_gradients([1, 2], rows)
    with pytest.raises(ValueError, match="keys must be a rectangular array"):
        table.lookup([torch.tensor([1.0], requires_grad=True), torch.tensor([1.0])])


@pytest.mark.parametrize("name", DTYPES)
def test_narrow_floats_are_what_they_say(table, name):
    given = torch.tensor(ROWS).to(getattr(torch, name))
    table.upsert(torch.tensor([1, 2]), given)
    np.testing.assert_array_equal(table.lookup(torch.tensor([1, 2])), np.array(ROWS, np.float32))
    table.apply_gradients(torch.tensor([1, 1, 2]), given[[0, 0, 1]])
    np.testing.assert_array_equal(table.lookup([1, 2]), [[-value for value in ROWS[0]], [0, 0, 0]])


def test_bfloat16_goes_in_bit_for_bit(store):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    variable = store.get_variable("half", value_dtype="bfloat16", dim=3, optimizer=SGD(1.0))
    variable.upsert([1, 2], torch.tensor(ROWS, dtype=torch.bfloat16))
    np.testing.assert_array_equal(variable.lookup([1, 2]), np.array(ROWS, ml_dtypes.bfloat16))
    variable.apply_gradients([1, 2], torch.tensor(ROWS, dtype=torch.bfloat16))
    np.testing.assert_array_equal(variable.lookup([1, 2]).astype(np.float32), np.zeros((2, 3), np.float32))
    variable.upsert([1], torch.tensor(ROWS, dtype=torch.bfloat16).T.contiguous().T[:1])
    assert variable.lookup([1]).astype(float).tolist() == ROWS[:1]


def test_what_is_no_float_at_all_is_refused(table):
    with pytest.raises(TypeError, match="values must be float32, got complex64"):
        table.upsert([1, 2], torch.tensor(ROWS, dtype=torch.complex64))


# A state dict.


def saved(tmp_path, tensor):
    torch.save({"weight": tensor}, tmp_path / "in.pt")
    return tmp_path / "in.pt"


@pytest.mark.parametrize("name", ["float32", *DTYPES, "float64", "int8", "int32", "int64"])
def test_a_weight_of_any_dtype_comes_in(tmp_path, open_store, name):
    rows = torch.tensor([[1, -2, 3], [4, 0, -1]]).to(getattr(torch, name))
    weight = torch.nn.Parameter(rows) if rows.is_floating_point() and not name.startswith("float8") else rows
    import_table(saved(tmp_path, weight), tmp_path / "new", variable="t")
    found = open_store(tmp_path / "new").variables["t"]
    assert found.value_dtype.name == ("float32" if name.startswith("float8") else name)
    assert found.lookup([0, 1]).astype(float).tolist() == [[1, -2, 3], [4, 0, -1]]


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (BAD["is sparse"], r"is sparse or nested; save it after to_dense\(\)"),
        (quantised, r"is quantised; save it after dequantize\(\)"),
        (BAD["on the device 'meta'"], "has no numbers in this file: it is on the device 'meta'"),
        (lambda: torch.ones(1, 3).expand(2**40, 3), r"has rows that share their numbers; save it after contiguous\(\)"),
        (lambda: torch.ones(2, 3, dtype=torch.complex64), "holds complex64, which no variable can"),
        (lambda: torch.ones(2, 3, dtype=torch.complex32), "holds complex32, which no variable can"),
    ],
)
def test_a_weight_without_numbers_of_its_own_is_refused(tmp_path, make, line):
    with pytest.raises(BadInput, match=f"'weight' of .*in.pt {line}"):
        import_table(saved(tmp_path, make()), tmp_path / "new")
    assert not (tmp_path / "new").exists()
