"""Functions that PyTorch's compiler must not trace, as torch.compiler.disable makes them.

That imports the compiler at once, which takes more than a second. Here it is imported by whoever compiles a model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def never_compiled(function: Function) -> Function:
    """Return a function that is not traced, nor what it calls."""
    disabled: Callable[..., Any] | None = None

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:  # nothing is compiled
            return function(*args, **named)
        if disabled is None:
            from torch._dynamo.decorators import skip

            skip(call)  # otherwise this frame would be compiled, again for each shape of a batch
            disabled = torch.compiler.disable(function)
        return disabled(*args, **named)

    vars(call)["_torchdynamo_disable"] = True  # so that the compiler does not trace it with its caller
    return cast(Function, call)
