"""Packages that may be called: `roundelay.report(runs)` works beside `from roundelay.report import load_runs`.

Importing a package sets it as an attribute of the one around it, where it would hide a function of the same name.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """A package that stands for a function of its own name, in the module that `_function_in` names."""

    _function_in: str

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return getattr(import_module(self._function_in), self.__name__.rpartition(".")[2])(*arguments, **options)


def make_callable(package: str, module: str) -> None:
    """Calling `package` from now on calls the function of that name in `module`, which is imported then."""
    found = sys.modules[package]
    found.__class__ = _CallablePackage
    vars(found)["_function_in"] = module
