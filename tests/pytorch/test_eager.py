"""What the compiler must not trace, which is not imported for that."""

from __future__ import annotations

import pytest
import torch
from programs import run_python

from kvemb.torch.eager import never_compiled


@pytest.mark.slow
def test_a_function_is_not_traced_by_a_compiler_that_comes_later():
    seen = []

    @never_compiled
    def half(given):
        seen.append(torch.compiler.is_compiling())
        return torch.from_numpy(given.numpy() / 2)

    compiled = torch.compile(lambda given: half(given + 1) * 2, backend="eager")
    for count in (2, 2, 3):
        assert compiled(torch.ones(count)).tolist() == [2.0] * count
    assert seen == [False] * 3


@pytest.mark.slow
def test_the_compiler_is_imported_by_whoever_compiles(tmp_path):
    done = run_python(
        """
        import sys
        import kvemb, torch
        import kvemb.torch as kt
        with kvemb.open("store", memory_budget="8MiB") as store:
            words = kt.Embedding("words", 4, store=store, optimizer=kvemb.optimizers.SGD(0.5))
            words(torch.tensor([1, 2])).sum()
        print("torch._dynamo" in sys.modules)
        """,
        cwd=tmp_path,
    )
    assert done.stdout == "False\n", done.stderr
