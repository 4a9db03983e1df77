"""What the compiler must not trace, which is not imported for that."""

from __future__ import annotations

import pytest
from programs import run_python


@pytest.mark.slow
def test_a_function_is_not_traced_by_a_compiler_that_comes_later(tmp_path):
    done = run_python(
        """
        import sys
        import torch
        from kvemb.torch.eager import never_compiled

        seen = []

        @never_compiled
        def half(given):
            seen.append(torch.compiler.is_compiling())
            return torch.from_numpy(given.numpy() / 2)

        @never_compiled
        def third(given):
            return torch.from_numpy(given.numpy() / 3)

        def model(given):
            return third(half(given + 1) * 6)

        assert "torch._dynamo" not in sys.modules
        compiled = torch.compile(model, backend="eager", dynamic=True)
        import torch._dynamo
        torch._dynamo.config.error_on_recompile = True  # nothing is compiled for each function, or for each shape
        for count in (2, 2, 3, 4):
            assert compiled(torch.ones(count)).tolist() == [2.0] * count
        assert seen == [False] * 4
        try:
            torch.compile(lambda given: model(given), backend="eager", fullgraph=True)(torch.ones(2))
        except torch._dynamo.exc.Unsupported as error:
            assert "half" in str(error), error
            print("named")
        """,
        cwd=tmp_path,
    )
    assert done.stdout == "named\n", done.stderr


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
