"""The GPU's kernels compile for the GPUs of today, keep everything in registers, and fuse no multiply-add."""

from __future__ import annotations

import re
from typing import Any

import pytest
from nvrtc import ARCHITECTURES, assembly_of, instructions_of, used_by

from kvemb.backends.cuda.source import OPTIONS, step_source, table_source, values_source
from kvemb.optimizers import KINDS, NAdam, Optimizer
from kvemb.rows.schema import Schema, dtype_of

KERNELS = r"^(?:\w+_)?KERNEL "


def schema_of(name: str, optimizer: Optimizer | None = None) -> Schema:
    return Schema(dtype_of("int64"), dtype_of(name), 4, optimizer.shapes(4) if optimizer else ())


def step_of(optimizer: Optimizer, dtype: str) -> str:
    slots = tuple(slot.name for slot in optimizer.slots)
    return step_source(optimizer.formulas, slots, schema_of(dtype, optimizer))


def check(source: str, what: Any) -> None:
    """Compile for every GPU; print the registers, and fail on a spill or a stack frame."""
    for architecture in ARCHITECTURES:
        kernels = used_by(source, architecture)
        assert set(kernels) == set(re.findall(KERNELS + r"(\w+)\(", source, re.MULTILINE))
        for name, used in kernels.items():
            print(f"{what} {architecture} {name}: {used.registers} registers, {used.occupancy():.0%} of the threads")
        for name, used in kernels.items():
            assert (used.stack_bytes, used.spilled_bytes) == (0, 0), f"{name} for {architecture}: {used}"


@pytest.mark.needs("nvidia.cu13")
def test_kernels_of_the_table_keep_everything_in_registers():
    check(table_source(), "table")


@pytest.mark.slow
def test_kernels_of_the_table_leave_room_for_three_blocks_and_are_short():
    """What can be said of speed without a GPU; -s prints it."""
    counts = {name: len(lines) for name, lines in instructions_of(table_source()).items()}
    print(counts)
    assert counts["find"] < 500
    assert counts["insert"] < 650
    for architecture in ARCHITECTURES:
        occupancies = {name: used.occupancy() for name, used in used_by(table_source(), architecture).items()}
        assert min(occupancies.values()) >= 3 * 256 / 2048, occupancies
        assert occupancies["find"] >= 0.75
        assert occupancies["insert"] >= 0.5


def accesses(kernel: str, of: str = "") -> str:
    """The loads, stores and additions of a kernel, in its order. of: what their names have after that."""
    pattern = re.compile(rf"(?:@\S+ )?(ld|st|atom)(?!\.param)\S*{of}\S* ")
    lines = instructions_of(table_source())[kernel]
    return " ".join(found[1] for line in lines if (found := pattern.match(line.expandtabs(1))))


@pytest.mark.slow
def test_what_comes_from_memory_is_on_its_way_before_the_first_of_it_is_needed():
    assert accesses("find", r"\.v4\.u32") == "ld ld ld st st", "digests; two units of a row"
    columns = 5  # key and step of the row that comes, key, score and step of the one that leaves
    assert "ld ld " + columns * "ld " + "atom st st" in accesses("insert"), "both rows, columns, the place; both rows"


@pytest.mark.slow
def test_every_access_is_known_to_be_one_of_global_memory():
    """Others are slower, and an addition to a score would be a loop of comparing and swapping in shared memory."""
    for source in (table_source(), values_source(schema_of("float32")), step_of(NAdam(), "float32")):
        for name, lines in instructions_of(source).items():
            accesses = [line for line in lines if re.match(r"(?:@\S+\s+)?(ld|st|atom|red)\.(?!param)", line)]
            assert accesses
            assert [line for line in accesses if ".global" not in line] == [], name


@pytest.mark.slow
def test_kernels_of_every_dtype_keep_everything_in_registers():
    names = ["float16", "float32", "float64", "int64"]  # bfloat16 and other integers take what these do
    check(joined({name: values_source(schema_of(name)) for name in names}), "values")


@pytest.mark.slow
def test_steps_of_every_optimizer_keep_everything_in_registers():
    check(joined({name: step_of(kind(learning_rate=0.1), "float64") for name, kind in KINDS.items()}), "steps")


def joined(sources: dict[str, str]) -> str:
    """One source of many, which compiles faster: what all begin with, then the rest of each in a namespace, and its
    kernels with its name before theirs.

    A kernel that several have, of the same types, is there once: sums of many gradients take longest to compile.
    """
    starts, known, text = set(), set(), ""
    for name, source in sources.items():
        start, types, rest = re.split(r"^(typedef .* Value;)$", source, flags=re.MULTILINE)
        helpers, *kernels = re.split(rf"(?={KERNELS})", rest, flags=re.MULTILINE)
        starts.add(start)
        own = [(helpers, types if "Value" in kernel else "", kernel) for kernel in kernels]
        named = [re.sub(KERNELS, rf"\g<0>{name}_", each[-1], flags=re.MULTILINE) for each in own if each not in known]
        known.update(own)
        text += f"namespace of_{name} {{\n{types}{helpers}{''.join(named)}\n}}\n"
    (start,) = starts
    return start + text


@pytest.mark.needs("nvidia.cu13")
def test_no_multiply_add_is_fused():
    assert "--fmad=false" in OPTIONS
    for source in (step_of(NAdam(), "float32"), values_source(schema_of("float64"))):
        assembly = assembly_of(source)
        assert "mul.rn.f" in assembly
        assert not re.search(r"\bfma\.rn\.f(32|64)", assembly)
