"""The base of all views: a class that names tables of the arena, and has them as numpy arrays on the shared memory.

A view is a frozen dataclass with a field for each of its tables, which says the table's shape; the arena computes from
the shapes where each table lies, and gives the view its arrays. Several processes that open the same arena therefore
see each other's stores, and a name that does not exist is an error of the type checker.

Legend: L learners, R rows: those of the learners and of the centre, if there is one.
"""

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sizes:
    """Numbers that shapes of tables depend on."""

    learners: int
    centre: bool = False
    scalars: int = 0  # that each learner's optimizer keeps, and the mass of its row, if rows are weighed
    tensors: int = 0  # trainable parameter tensors of a module that somebody else's loop trains
    others: int = 0  # learners whose shares each row knows, if rows are weighed

    @property
    def rows(self) -> int:
        """Rows with a version and a lock: the learners' and the centre's."""
        return self.learners + self.centre


@dataclass(frozen=True)
class Table:
    """Shape and type of one table; every item has 8 bytes."""

    shape: tuple[int, ...]
    kind: type[Any] = np.int64

    @property
    def items(self) -> int:
        """Numbers in it."""
        return int(np.prod(self.shape))


Size = int | Callable[[Sizes], int]
L: Size = attrgetter("learners")
R: Size = attrgetter("rows")


def table(*shape: Size, kind: type[Any] = np.int64) -> Any:
    """Return a field of a view: a table of this shape."""
    return field(metadata={"shape": shape, "kind": kind})


class View(ABC):  # noqa: B024 what is missing is fields
    """Some tables of the arena. Subclasses are frozen dataclasses, each field of which is a `table`."""

    PUBLISHED: ClassVar[tuple[str, ...]] = ()
    """Tables that others act on without holding a lock. While others may read them, they are written by `publish`
    alone; a segment may begin with plain stores."""

    @classmethod
    def tables(cls, sizes: Sizes) -> dict[str, Table]:
        """Return the tables it owns, by the names of its fields."""
        kind: Any = cls
        return {
            item.name: Table(
                tuple(size if isinstance(size, int) else size(sizes) for size in item.metadata["shape"]),
                item.metadata["kind"],
            )
            for item in fields(kind)
        }

    @classmethod
    def on(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the view of these `arrays`, by the names that `tables` gives them."""
        make: Any = cls
        view: Self = make(**arrays)
        return view
