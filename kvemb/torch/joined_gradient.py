"""The gradient of a variable's rows that all ranks have together, as a tensor that clipping and GradScaler may use.

It is on the shards: this tensor has no values. It knows its norm, whether it is finite, and how to be multiplied by a
number in place, as torch.nn.utils.clip_grad_norm_ and torch.amp.GradScaler do. Everything else raises TypeError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch

from kvemb.cluster.in_step.parts import JoinedNorm


class JoinedGradients(Protocol):
    """The joined gradients of all variables."""

    def norm_of(self, at: int) -> JoinedNorm:
        """Return the norm of a variable's gradient. All ranks must call this."""

    def all_norms(self) -> list[JoinedNorm]:
        """Return those of all variables. All ranks must call this."""

    def multiply(self, at: int, factor: float) -> None:
        """Multiply a variable's gradient. All ranks must call this."""


class JoinedGradient(torch.Tensor):
    """See the module. Its shape is (1, dim), whatever the number of rows. of, at: whose gradient it is, and which."""

    of: JoinedGradients
    at: int

    @staticmethod
    def __new__(cls, of: JoinedGradients, at: int, dim: int, dtype: torch.dtype) -> JoinedGradient:
        """Make one."""
        made = cast(JoinedGradient, torch.Tensor._make_wrapper_subclass(cls, (1, dim), dtype=dtype))
        made.of, made.at = of, at
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"JoinedGradient(dim={self.shape[1]}, dtype={self.dtype})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do what is possible without the values. Raises TypeError."""
        if func is torch.ops.aten.linalg_vector_norm.default and len(args) <= 2 and not kwargs:
            return _norm(args[0], float(args[1]) if len(args) == 2 else 2.0)
        if func in (torch.ops.aten.mul_.Tensor, torch.ops.aten.mul_.Scalar) and isinstance(args[0], JoinedGradient):
            args[0].of.multiply(args[0].at, float(args[1]))
            return args[0]
        if func is torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default:
            return _unscale(*args)
        raise TypeError(
            f"the gradient of all ranks is on the shards, so {func} cannot be computed: use clip_grad_norm_ with the "
            "norm 2 or infinity, GradScaler, or the clip_norm and clip_value of kvemb.optimizers"
        )


def _norm(gradient: JoinedGradient, order: float) -> torch.Tensor:
    if order not in (2.0, math.inf):
        raise TypeError(f"gradients of all ranks have the norms 2 and infinity, got {order:g}")
    norm = gradient.of.norm_of(gradient.at)
    return torch.tensor(math.sqrt(norm.squares) if order == 2.0 else norm.largest, dtype=gradient.dtype)


def _unscale(gradients: list[JoinedGradient], found_inf: torch.Tensor, inverse_scale: torch.Tensor) -> None:
    """Multiply gradients by a number, and set found_inf to 1 if any is not finite."""
    norms = gradients[0].of.all_norms()  # GradScaler calls this for one optimizer at a time
    for gradient in gradients:
        if not norms[gradient.at].finite:
            found_inf.fill_(1.0)
        gradient.of.multiply(gradient.at, float(inverse_scale))
