"""A tensor without values: what clipping and GradScaler ask of it. Ranks in step use it in test_in_step."""

from __future__ import annotations

import pytest
import torch

from kvemb.cluster.in_step.parts import JoinedNorm
from kvemb.torch.joined_gradient import JoinedGradient


class Known:
    """Gradients with known norms; what is done with them is written down."""

    def __init__(self, *norms):
        self.norms, self.done = list(norms), []

    def norm_of(self, at):
        self.done.append(("norm", at))
        return self.norms[at]

    def all_norms(self):
        self.done.append("norms")
        return self.norms

    def multiply(self, at, factor):
        self.done.append(("times", at, factor))


def leaf(gradient):
    made = torch.zeros(1, gradient.shape[1], dtype=gradient.dtype).requires_grad_()
    made.grad = gradient
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clipping_asks_for_each_norm_once_and_multiplies(dtype):
    known = Known(JoinedNorm(9.0, 2.0), JoinedNorm(16.0, 3.5))
    leaves = [leaf(JoinedGradient(known, at, 4, dtype)) for at in range(2)]
    assert torch.nn.utils.clip_grad_norm_(leaves, 2.5).item() == 5.0
    assert known.done[:2] == [("norm", 0), ("norm", 1)]
    assert [(what, at) for what, at, _ in known.done[2:]] == [("times", 0), ("times", 1)]
    assert known.done[2][2] == pytest.approx(0.5, rel=1e-5)
    assert torch.nn.utils.clip_grad_norm_(leaves, 2.5, norm_type=torch.inf).item() == 3.5


def test_unscaling_asks_once_and_says_whether_any_is_not_finite():
    for finite in (True, False):
        known = Known(JoinedNorm(), JoinedNorm(finite=finite))
        found, scale = torch.zeros(1), torch.tensor([0.25])
        gradients = [JoinedGradient(known, at, 4, torch.float32) for at in range(2)]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, scale)
        assert known.done == ["norms", ("times", 0, 0.25), ("times", 1, 0.25)]
        assert bool(found) is not finite


def test_what_needs_values_is_refused():
    gradient = JoinedGradient(Known(JoinedNorm()), 0, 2, torch.float32)
    assert "JoinedGradient(dim=2" in repr(gradient)
    for wrong in (
        lambda: torch.nn.utils.clip_grad_value_([leaf(gradient)], 1.0),
        lambda: gradient.sum(),
        lambda: gradient.norm(1.0),
    ):
        with pytest.raises(TypeError, match=r"the gradient of all ranks|norms 2 and infinity"):
            wrong()
