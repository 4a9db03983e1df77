"""Makes every process that has this folder in PYTHONPATH take a second for each batch of rows that it reads, so that
whatever reads a table goes on for long enough to be interrupted, also where the test is kept waiting for the processor.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from importlib.abc import MetaPathFinder
from typing import Any

SECONDS = 1.0


class Slow(MetaPathFinder):
    """Slows kvemb.bulk down as it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "kvemb.bulk":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        execute = spec.loader.exec_module

        def slowed(module: Any) -> None:
            execute(module)
            scan = module.scan

            def slow(*arguments: Any, **options: Any) -> Any:
                for rows in scan(*arguments, **options):
                    yield rows
                    time.sleep(SECONDS)

            module.scan = slow

        spec.loader.exec_module = slowed
        return spec


sys.meta_path.insert(0, Slow())
