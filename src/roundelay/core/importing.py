"""Imports without garbage collection. They make two hundred thousand objects that all stay, and collections in between
look at them again and again for a tenth of the time."""

import gc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch garbage collection off in the block."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class _Uncollected(MetaPathFinder):
    """Lets the first import of one module run without garbage collection, wherever it is."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as others do, and wrap what executes it."""
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and (loader := spec.loader) is not None:
            execute = loader.exec_module

            def uncollected_once(module: ModuleType) -> None:
                with uncollected():
                    execute(module)

            loader.exec_module = uncollected_once  # type: ignore[method-assign]
        return spec


def import_uncollected(module: str) -> None:
    """Let its first import in this process, by whichever command, run without garbage collection."""
    if module not in sys.modules:
        sys.meta_path.insert(0, _Uncollected(module))
