"""Notices that the gradients of a model were clipped or accumulated, and those of its rows were not.

A module's anchor is one of model.parameters(), and has a gradient, which is 0. What a program or a framework does in
place to all gradients, it does to that one, and PyTorch counts such changes, but for those of a GradScaler. So no call
of PyTorch need be replaced.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch


class AnchorWatch:
    """Watches the gradient of one module's anchor. A copy watches nothing yet."""

    def __init__(self) -> None:
        self.ignored = False  # whether a program said that what is done to all gradients is not meant for the rows
        self._anchor: weakref.ref[torch.Tensor] | None = None
        self._seen: list[Any] = []  # the gradient as the last backward pass left it, and how often it had changed

    def watch(self, anchor: torch.Tensor) -> None:
        """Watch this anchor from now on."""
        if self._anchor is not None and self._anchor() is anchor:
            return
        seen: list[Any] = []

        def accumulated(anchor: torch.Tensor) -> None:
            seen[:] = [] if anchor.grad is None else [anchor.grad, anchor.grad._version]

        anchor.register_post_accumulate_grad_hook(accumulated)
        self._anchor, self._seen = weakref.ref(anchor), seen

    @property
    def changed(self) -> bool:
        """Whether the gradient was changed in place since the last backward pass, and the program is to be told."""
        anchor = None if self._anchor is None else self._anchor()
        if self.ignored or anchor is None or not self._seen:
            return False
        grad, version = self._seen
        return anchor.grad is grad and grad._version != version

    def __reduce__(self) -> tuple[Any, ...]:
        return AnchorWatch, ()
