"""Codecs by name. A new one is a file here and an entry in `CODECS`."""

import dataclasses

from roundelay.algorithms.codecs.bf16 import Bf16
from roundelay.algorithms.codecs.int4 import Int4
from roundelay.algorithms.codecs.int8 import Int8
from roundelay.core.codec import Codec, Fp32
from roundelay.core.errors import UserError
from roundelay.core.strategy_text import did_you_mean

CODECS: dict[str, Codec] = {codec.name: codec() for codec in (Fp32, Bf16, Int8, Int4)}


def codec_named(name: str, where: str = "codec", memory: str = "") -> Codec:
    """The codec of that name, with the named vector for what it leaves out.

    Raises:
        UserError: there is none; says `where` it was asked for, and lists those there are.
    """
    if name not in CODECS:
        raise UserError(f"{where} is {name!r}: choose one of {', '.join(CODECS)}.{did_you_mean(str(name), CODECS)}")
    return dataclasses.replace(CODECS[name], memory=memory)
