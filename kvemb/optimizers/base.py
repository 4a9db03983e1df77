"""The base class of optimizers. Frozen values: threads and variables may share them."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, ClassVar, Self

import numpy as np

from kvemb.checks.declared import Declared, accepts, arguments, as_json
from kvemb.checks.numeric import as_float
from kvemb.optimizers.clipping import clip_to_norm, clip_values
from kvemb.optimizers.formula import Formula, Function, read, run
from kvemb.rows.schema import SlotShape

# The slot that counts a row's own steps.
STEPS = "steps"
# Names that torch.optim and FBGEMM give hyperparameters; the message says the name here.
_ELSEWHERE = {
    "lr": "learning_rate",
    "eps": "epsilon",
    "betas": "beta_1 and beta_2",
    "beta1": "beta_1",
    "beta2": "beta_2",
}


@dataclass(frozen=True)
class Slot:
    """A slot: one part of an optimizer's state in every row.

    Args:
        name: A Python identifier. Exports name a column by it. On disk, do not rename.
        width: The number of elements in a row. None stands for dim, the width of the embedding. Default: None.
        initial: The value of every element in a new row. Default: 0.0.
    """

    name: str
    width: int | None = None
    initial: float = 0.0


def number(default: float) -> Any:
    """Declare a hyperparameter: a finite float, at least 0."""
    return accepts(as_float, default, least=0)


class _Signature:
    """The arguments of a class, which are those of its __init__; documentation would show those of __new__."""

    def __get__(self, made: object, kind: Any) -> inspect.Signature:
        signature = inspect.signature(kind.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


@dataclass(frozen=True, kw_only=True, repr=False)
class Optimizer(Declared, abc.ABC):
    """The base of all optimizers: frozen hyperparameters, the slots in a row, and the formula of a step.

    A step uses the sum of a key's gradients. It changes only the rows of the call: all other rows keep their embeddings
    and slots, so momentum and weight decay do not act on them. The sum is clipped first, then weight decay acts, then
    the optimizer's own formula.

    An optimizer never changes. To change a hyperparameter of an open variable, such as its learning rate, set
    `variable.optimizer` to another optimizer of the same class.

    In the formulas of the subclasses, w is a row's embedding, g is its gradient, and dim is the number of their
    elements. Slots have dim elements unless said otherwise.

    To add an optimizer to kvemb, define its fields with `number` or `accepts`, of which one must be learning_rate
    (`kvemb migrate` sets it), and these members:

    - `name`: its name on disk; do not rename. `slots`: a tuple, or a property if they depend on its fields.
    - `formula`: one step on one row, in place, as described in kvemb.optimizers.formula. It is written once: kernels
      are generated from it, and NumPy runs it as it is.
    - `match`: a formula that sets the slots that depend on the embedding. It is used for a row whose embedding was set
      other than by a step. None if there are no such slots.
    - a docstring that describes its fields. The arguments that it inherits are added (kvemb.shared_docs).

    Args:
        clip_value: Each element of the summed gradient is limited to the range from -clip_value to clip_value, like
            Keras' clipvalue. None: no limit. Default: None.
        clip_norm: A summed gradient with a larger L2 norm is scaled to this norm, like Keras' clipnorm. It acts on each
            key's gradient, after clip_value. None: no limit. Default: None.

    Raises:
        TypeError: A value has the wrong type, or an argument is unknown.
        ValueError: A number is not finite, has the wrong sign, or is out of its range.
    """

    name: ClassVar[str]
    formula: ClassVar[Function]
    match: ClassVar[Function | None] = None
    __signature__: ClassVar[_Signature] = _Signature()

    clip_value: float | None = accepts(as_float, None, above=0)
    clip_norm: float | None = accepts(as_float, None, above=0)

    def __new__(cls, *_args: Any, **arguments: Any) -> Self:
        """Make an optimizer. Raises TypeError for a name that torch.optim or FBGEMM has, and says the one here."""
        for name in () if inspect.isabstract(cls) else [name for name in arguments if name in _ELSEWHERE]:
            known = inspect.signature(cls).parameters
            if name not in known and not any(each.kind is each.VAR_KEYWORD for each in known.values()):
                here = f"which is {_ELSEWHERE[name]} in kvemb; its arguments are {', '.join(known)}"
                raise TypeError(f"{cls.__name__} has no argument {name}, {here}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Not inherited: @dataclass(frozen=True) gives each class its own, with an error that does not say what to do.
        if type(self).__setattr__ is not _refuse:
            type(self).__setattr__ = _refuse  # type: ignore[method-assign, assignment]

    @property
    @abc.abstractmethod
    def slots(self) -> tuple[Slot, ...]:
        """The slots, in their order in a row; on disk, do not reorder."""

    @property
    def formulas(self) -> tuple[Function, ...]:
        """The formulas of one step, in order: clipping, weight decay, those of own_formulas()."""
        clipping = [(self.clip_value, clip_values), (self.clip_norm, clip_to_norm)]
        return (*(clip for limit, clip in clipping if limit is not None), *self.decay_formulas(), *self.own_formulas())

    def decay_formulas(self) -> tuple[Function, ...]:
        """Return the formulas of weight decay.

        Returns:
            The formulas in order; an empty tuple without weight decay.
        """
        return ()

    def own_formulas(self) -> tuple[Function, ...]:
        """Return the formulas of the optimizer itself, without clipping and weight decay.

        Returns:
            The formulas in order.
        """
        return (self.formula,)

    @property
    def counts_steps(self) -> bool:
        """Whether the variable must count its steps (calls of apply_gradients), which bias correction then uses."""
        return False

    def numbers(self, function: Function, dtype: np.dtype[Any]) -> dict[str, Any]:
        """Return a formula's numbers, which are the attributes of the same names, in float64 or in dtype.

        Args:
            function: The formula.
            dtype: The dtype of the slots, in which the formula calculates.

        Returns:
            The numbers and tables by name.

        Raises:
            TypeError: The formula contains what no formula may contain.
        """
        formula = read(function)
        return {name: self._number(name, formula, dtype) for name in formula.numbers}

    def _number(self, name: str, formula: Formula, dtype: np.dtype[Any]) -> Any:
        if name in formula.tables:
            return getattr(self, name)
        return (np.float64 if name in formula.wide else dtype.type)(getattr(self, name))

    def step(self, values: Any, slots: Mapping[str, Any], grads: Any, count: int = 0) -> Any:
        """Take one step in NumPy: the reference for the kernels, which give the same bits.

        Args:
            values: The embeddings, (n, dim), in any float dtype. They are not changed.
            slots: The slots by name, (n, width), all in one dtype. They are changed in place.
            grads: The gradients, (n, dim), in the slots' dtype. They are not changed.
            count: The variable's step count, this step included. It is used only if counts_steps. Default: 0.

        Returns:
            The new embeddings, a new array (n, dim) of values' dtype.

        Raises:
            TypeError: A formula contains what no formula may contain.
        """
        rows = {"w": values.astype(grads.dtype), "g": grads.copy(), **slots}
        if STEPS in slots:
            slots[STEPS][:] = slots[STEPS] + 1
        for function in self.formulas:
            taken: dict[str, Any] = self.numbers(function, grads.dtype)
            if (name := read(function).count) is not None:
                taken[name] = slots[STEPS][:, 0].copy() if STEPS in slots else np.float64(count)
            run(function, rows, taken)
        with np.errstate(all="ignore"):
            return rows["w"].astype(values.dtype)

    def match_slots(self, values: Any, slots: Mapping[str, Any]) -> None:
        """Set, in NumPy, the slots that depend on the embedding (match).

        Args:
            values: The embeddings, as for step().
            slots: The slots, as for step(). They are changed in place.

        Raises:
            TypeError: The formula contains what no formula may contain.
        """
        if self.match is not None and slots:
            dtype = next(iter(slots.values())).dtype
            wide = values.astype(dtype)
            run(self.match, {"w": wide, "g": wide, **slots}, self.numbers(self.match, dtype))

    def shapes(self, dim: int) -> tuple[SlotShape, ...]:
        """Return the schema's slots for rows of `dim` values.

        Args:
            dim: The number of elements of an embedding.

        Returns:
            The names and widths of the slots, in their order in a row.
        """
        return tuple(SlotShape(slot.name, dim if slot.width is None else slot.width) for slot in self.slots)

    def fits(self, other: Optimizer) -> bool:
        """Return whether rows trained with `other` can be trained with this: whether both have the same name and slots.

        Args:
            other: The optimizer that trained the rows. Its hyperparameters and initial values of slots may differ.

        Returns:
            True if they can.
        """
        mine, theirs = ([(slot.name, slot.width) for slot in each.slots] for each in (self, other))
        return (self.name, mine) == (other.name, theirs)

    def to_json(self) -> dict[str, Any]:
        """Return the optimizer as plain JSON.

        Returns:
            A dict of "name" and the fields. Floats are kept exactly.
        """
        return as_json(self, "name", self.name)

    def __repr__(self) -> str:
        """Return the call that makes it, without keyword options that have their defaults."""
        told = ((field.name, getattr(self, field.name), field) for field in arguments(self))
        parts = [f"{name}={value!r}" for name, value, field in told if not field.kw_only or value != field.default]
        return f"{type(self).__name__}({', '.join(parts)})"


def _refuse(self: Optimizer, name: str, value: object) -> None:
    """Raise FrozenInstanceError, which says how a variable gets other hyperparameters."""
    made = type(self)
    where = "kvemb.optimizers." * made.__module__.startswith("kvemb.optimizers.")
    raise FrozenInstanceError(
        f"cannot set {name!r} of an optimizer, which never changes; set a new one of the same class: "
        f"variable.optimizer = {where}{made.__name__}(...)"
    )
