"""Packages that loggers need and that are not installed."""

from importlib import import_module
from typing import Any

from roundelay.core.errors import UserError


def wanted(package: str, who: str) -> Any:
    """The module of a package.

    Raises:
        UserError: it is not installed; says how to install it.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise UserError(f"{who} needs the package {package}: pip install 'roundelay[{package}]'.") from None
