"""Codecs by name. A new one is a file here and an entry in `CODECS`; or a class of another package, by an entry point
of the group `roundelay.codecs`."""

import dataclasses
from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint

from roundelay.algorithms.codecs.bf16 import Bf16
from roundelay.algorithms.codecs.int4 import Int4
from roundelay.algorithms.codecs.int8 import Int8
from roundelay.algorithms.codecs.one_bit import OneBit
from roundelay.algorithms.codecs.sparse import Sparse
from roundelay.core.codec import Codec, Fp32
from roundelay.core.errors import UserError
from roundelay.core.plugins import WithPlugins, load_plugin
from roundelay.core.strategy_text import did_you_mean


def _made(found: EntryPoint) -> Codec:
    codec: Codec = load_plugin(found)()
    return codec


_OWN: dict[str, Codec] = {codec.name: codec() for codec in (Fp32, Bf16, Int8, Int4, OneBit)}
CODECS = WithPlugins("codecs", _OWN, _made)
"""Codecs for any vector, which a run or a strategy may ask for by name."""
FORMS = WithPlugins("codecs", {**_OWN, Sparse.name: Sparse()}, _made)
"""All codecs, also those for the messages of one strategy."""
MOST_NUMBERS = max(len(codec.numbers) for codec in FORMS.own.values())
"""The largest number of options of a codec."""


@cache
def form_names() -> tuple[str, ...]:
    """Return the names of all codecs, in an order that all processes of a host share."""
    return tuple(FORMS)


def codec_named(name: str, where: str = "codec", memory: str = "") -> Codec:
    """Return the codec `name`; `memory` names the vector in which a learner keeps the part it leaves out.

    Raises:
        UserError: there is no such codec; says `where` it was asked for, and lists the codecs.
    """
    if name not in CODECS:
        raise UserError(f"{where} is {name!r}: choose one of {', '.join(CODECS)}.{did_you_mean(str(name), CODECS)}")
    return dataclasses.replace(CODECS[name], memory=memory)


def codec_of(name: object, numbers: Sequence[float] = ()) -> Codec:
    """Return the codec that a message from another learner or host names: the one called `name`, with as many of
    `numbers` as it has options.

    Raises:
        ValueError: there is no codec of that name.
    """
    form = FORMS.get(name) if isinstance(name, str) else None
    if form is None:
        raise ValueError(f"there is no codec {name!r}")
    options = [option.name for option in dataclasses.fields(form) if option.name != "memory"]
    if len(numbers) < len(options) or not all(isinstance(number, int | float) for number in numbers):
        raise ValueError(f"the form {name} has {len(options)} numbers, not {numbers}")
    given = {option: type(getattr(form, option))(n) for option, n in zip(options, numbers, strict=False)}
    return dataclasses.replace(form, **given)
