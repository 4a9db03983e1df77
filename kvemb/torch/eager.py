"""Functions that PyTorch's compiler must not trace, as torch.compiler.disable makes them.

That imports the compiler at once, which takes more than a second. Here it is imported by whoever compiles a model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def never_compiled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return a function that is not traced, nor what it calls."""
    disabled: Callable[Arguments, Result] | None = None

    @wraps(function)
    def call(*args: Arguments.args, **named: Arguments.kwargs) -> Result:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:  # nothing is compiled
            return function(*args, **named)
        if disabled is None:
            disabled = torch.compiler.disable(function)
        return disabled(*args, **named)

    return call
