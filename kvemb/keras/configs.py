"""What the config of a layer says about its variable, and the way from there to the open store that has the rows."""

from __future__ import annotations

from typing import Any

from kvemb.checks.brief import there_are
from kvemb.defaults import DEFAULTS
from kvemb.errors import StoreNotFound
from kvemb.keras.anchors import known_variables
from kvemb.variable import Variable


def config_of(variable: Variable) -> dict[str, Any]:
    """Return which variable of which store it is, as JSON values."""
    store, name = variable.resource_handle
    return {"variable": name, "dim": variable.dim, "store": {"id": store.id, "path": str(store.path)}}


def find(config: dict[str, Any], what: str) -> Variable:
    """Return the variable of a config.

    It is that of the innermost default store; without one, that of a layer of this process, if its store is open.
    Raises StoreNotFound, ValueError.
    """
    name, dim, said = config["variable"], config["dim"], config["store"]
    how = f"open the store that has the rows: with kvemb.open({said['path']!r}): keras.saving.load_model(...)"
    if DEFAULTS.stores:
        store: Any = DEFAULTS.stores[-1]
        if name not in store.variables:
            raise StoreNotFound(
                f"{what} needs the variable {name!r}, but in the default store, {store.path}, "
                f"{there_are(store.variables)}; {how}"
            )
        found: Variable = store.get_variable(name)
    else:
        mine = [each for each in known_variables() if not each.resource_handle[0].state.closed]
        mine = [each for each in mine if (each.name, each.resource_handle[0].id) == (name, said["id"])]
        if not mine:
            raise StoreNotFound(f"{what} needs the variable {name!r}, and there is no default store; {how}")
        found = mine[0]
    if found.dim != dim:
        raise ValueError(f"{what} was saved with a variable {name!r} of dim {dim}, but this store's has {found.dim}")
    return found
