"""Mark, the value that names a kept durable point. Immutable; it may be pickled and compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Mark:
    """Name a state of a store that it keeps, and to which ``Store.rollback`` takes it back.

    ``Store.mark`` returns one, ``Store.marks`` lists them. Two are equal if they have the same id.

    Attributes:
        id: Its identity, 32 hexadecimal digits.
        store: The store's identity.
        name: The name that the caller gave it; None: it has none.
        created: When it was made, in seconds since 1970.
        path: The directory of the kept durable point, which every tool reads as it reads a checkpoint.
    """

    id: str
    store: str = field(compare=False)
    name: str | None = field(compare=False)
    created: float = field(compare=False)
    path: Path = field(compare=False)
