"""Packages that come with an extra of this one (`pip install 'roundelay[speech]'`), and that an installation may lack.

Training a user's module needs none of them. So nothing imports one when it is imported itself: commands and functions
name what they need before they begin (`need`), or load it by name (`load`). `roundelay_speech`, the package of all that
is for audio, is one of them. Imports make two hundred thousand objects that all stay, and garbage collections in
between would look at them again and again for a tenth of the time: there are none (`uncollected`).
"""

import gc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, final

from roundelay.core.errors import UserError

_SPEECH = "roundelay_speech"
MODULES = {
    "demo": (_SPEECH, "espeakng_loader"),
    "detector": ("onnxruntime", "silero_vad"),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "hosts": ("cryptography",),
    "lhotse": (_SPEECH, "lhotse"),
    "serve": ("python_multipart", "starlette", "uvicorn", "websockets"),
    "speech": (_SPEECH,),
    "tensorboard": ("tensorboard",),
}
"""Modules of each extra that `need` looks for."""


def need(extra: str, who: str) -> None:
    """Check that all packages of an extra are installed, without loading any.

    Args:
        extra: a key of `MODULES`.
        who: the command or function that needs them, as the message begins.

    Raises:
        UserError: some are not installed; names them, and how to install them.
    """
    if missing := _missing_of(extra):
        raise _missing(missing, extra, who)


def has(extra: str) -> bool:
    """Return True if all packages of an extra are installed."""
    return not _missing_of(extra)


def _missing_of(extra: str) -> list[str]:
    return [module for module in MODULES[extra] if importlib.util.find_spec(module) is None]


def load(module: str, extra: str, who: str) -> Any:
    """Load and return `module`, of a package that comes with `extra`.

    Raises:
        UserError: the package is not installed; says that `who` needs it, and how to install it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError:
        package, _, _ = module.partition(".")
        if importlib.util.find_spec(package) is not None:
            raise
        raise _missing([package], extra, who) from None


@final
class Binding:
    """A stand-in for a module, which is loaded at the first use of one of its names.

    Args:
        module: its name.
        extra: the extra that brings it.
    """

    def __init__(self, module: str, extra: str) -> None:
        self._module, self._extra = module, extra

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # tools that look at every object ask for such names
            raise AttributeError(name)
        return getattr(load(self._module, self._extra, self._extra.capitalize()), name)


def _missing(modules: list[str], extra: str, who: str) -> UserError:
    names = " and ".join(filter(None, (", ".join(modules[:-1]), modules[-1]))).replace("_", "-")
    return UserError(f"{who} needs the package{'s' * (len(modules) > 1)} {names}: pip install 'roundelay[{extra}]'.")


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
    """An import hook that runs the first import of one module without garbage collection."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as usual, and wrap its loader."""
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
    """Have the first import of `module` in this process run without garbage collection."""
    if module not in sys.modules:
        sys.meta_path.insert(0, _Uncollected(module))
