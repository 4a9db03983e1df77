"""Where the bytes of a store's budget are."""

from __future__ import annotations

from kvemb.engine.admitting import memory_bytes
from kvemb.engine.engine import Engine
from kvemb.stats import HOST


def memory_use(engine: Engine) -> dict[str, int]:
    """Return the bytes of each part of the host's budget; their sum is the budget. See kvemb.Store.memory."""
    budgets, staging = engine.budgets, engine.budgets.staging
    tables = list(engine.tables.values())
    sizes = [table.hot_tables.sizes() for table in tables]
    cells = {
        "cells": sum(size[HOST].nbytes for size in sizes if HOST in size),
        "free": budgets.host.free,
        "copies": sum(staging.reserve_bytes(table.schema, engine.limits) for table in tables),
        "sightings": sum(memory_bytes(engine, table.specification) for table in tables),
        "cache": budgets.cached_bytes,
    }
    staged = {"read": staging.read.used, "memtables": staging.memtables.used}
    staged["staging_free"] = staging.total - sum(staged.values())
    return {**cells, "other": budgets.host.total - staging.total - sum(cells.values()), **staged}
