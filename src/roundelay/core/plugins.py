"""Parts that other packages bring by entry points: found by name, and loaded when they are asked for."""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, final

from roundelay.core.errors import UserError

T = TypeVar("T")
GROUPS = {
    "codecs": ("codec", "class", "roundelay.core.codec.Codec"),
    "commands": ("command", "", ""),
    "corpora": ("corpus", "object", "roundelay_speech.corpus.readers.base.Reader"),
    "exports": ("export", "", ""),
    "loggers": ("logger", "", ""),
    "models": ("model", "class", "roundelay_speech.models.network.NetworkConfig"),
    "objectives": ("objective", "class", "roundelay.learner.objectives.base.Objective"),
    "strategies": ("strategy", "class", "roundelay.strategies.base.Strategy"),
}
"""Kinds of parts that packages bring; for each the class that a part must derive from or be an object of, else it is
any function."""


@final
@dataclass(frozen=True)
class OrPlugins:
    """A mark in the type of an option, `Annotated[..., OrPlugins(kind)]`: other packages may bring further words or
    sections."""

    kind: str  # of `GROUPS`


def find_plugins(kind: str, taken: Container[str] = ()) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages in the group `roundelay.KIND`, by name; `kind` is one of `GROUPS`.

    Args:
        taken: names that entry points may not have.

    Raises:
        UserError: an entry point has a taken name, or two packages have the same; names the packages.
    """
    found: dict[str, EntryPoint] = {}
    for one in entry_points(group=f"roundelay.{kind}"):
        if one.name in taken:
            raise UserError(
                f"the package {package_of(one)} has a {GROUPS[kind][0]} {one.name!r}, which Roundelay has itself."
            )
        other = found.setdefault(one.name, one)
        if other.value != one.value:
            raise UserError(
                f"the packages {package_of(other)} and {package_of(one)} both have a {GROUPS[kind][0]} {one.name!r}: "
                "uninstall one."
            )
    return {name: found[name] for name in sorted(found)}


def load_plugin(found: EntryPoint) -> Any:
    """Return the object that an entry point names.

    Raises:
        UserError: the object cannot be loaded, or is not what its kind must be; names the package.
    """
    one_of, is_a, base = GROUPS[found.group.removeprefix("roundelay.")]
    try:
        part = found.load()
    except Exception as error:
        raise UserError(
            f"the {one_of} {found.name!r} of the package {package_of(found)} cannot be loaded: {error}. Mend that "
            "package, or uninstall it."
        ) from error
    if not base:
        fits, wanted = callable(part), "a function"
    else:
        module, _, name = base.rpartition(".")
        seam = getattr(import_module(module), name)
        fits = isinstance(part, type) and issubclass(part, seam) if is_a == "class" else isinstance(part, seam)
        fits = fits and getattr(part, "name", None) == found.name
        wanted = f"{'a class derived from' if is_a == 'class' else 'a'} {base}, whose `name` is {found.name!r}"
    if not fits:
        raise UserError(
            f"the entry point {found.name!r} of the package {package_of(found)} is {found.value}: it must be {wanted}."
        )
    return part


def package_of(found: EntryPoint) -> str:
    """Return the name of the package that has an entry point."""
    return found.dist.name if found.dist else found.value


@final
class WithPlugins(Mapping[str, T]):
    """A mapping of parts by name: our own, and those of other packages, which are made when they are looked up.

    Args:
        kind: of `GROUPS`.
        make: returns the part that an entry point names.
    """

    def __init__(self, kind: str, own: Mapping[str, T], make: Callable[[EntryPoint], T] = load_plugin) -> None:
        self.kind, self.own, self._make = kind, own, make

    def __getitem__(self, name: str) -> T:
        return self.own[name] if name in self.own else self._make(find_plugins(self.kind, self.own)[name])

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from find_plugins(self.kind, self.own)

    def __len__(self) -> int:
        return sum(1 for _ in self)
