"""Strategies by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from roundelay.core.errors import UserError
from roundelay.strategies.adpsgd import AdPsgd
from roundelay.strategies.asgd import Asgd
from roundelay.strategies.base import Strategy
from roundelay.strategies.bmuf import Bmuf, BmufFairseq
from roundelay.strategies.bsp import Bsp
from roundelay.strategies.delay_by_one import DelayByOne
from roundelay.strategies.delayed_gradient import DelayedGradient
from roundelay.strategies.diloco import DiLoCo
from roundelay.strategies.dpsgd import DPsgd
from roundelay.strategies.easgd import Easgd, EasgdSync
from roundelay.strategies.gossip_pga import GossipPga
from roundelay.strategies.hadpsgd import HAdPsgd
from roundelay.strategies.sgd import Sgd
from roundelay.strategies.slowmo import SlowMo
from roundelay.strategies.ssgd import Ssgd

STRATEGIES: Mapping[str, type[Strategy]] = {
    cls.name: cls
    for cls in (
        Sgd, Ssgd, Bsp, Bmuf, BmufFairseq, SlowMo, DiLoCo, Asgd, Easgd, EasgdSync, DPsgd, GossipPga, AdPsgd, HAdPsgd,
        DelayByOne, DelayedGradient,
    )
}  # fmt: skip


def make_strategy(name: str, options: Mapping[str, Any] | None = None) -> Strategy:
    """The strategy called `name`; `adpsgd:fixed-ring` is short for adpsgd with topology fixed-ring.

    Raises:
        UserError: no such strategy or option; lists those there are.
    """
    name, _, topology = name.partition(":")
    given = dict(options or {})
    cls = STRATEGIES.get(name)
    if cls is None:
        raise UserError(f"there is no strategy {name!r}: choose one of {', '.join(STRATEGIES)}.")
    fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # every strategy is a dataclass
    if topology:
        given["topology"] = topology
    unknown = sorted(set(given) - set(fields))
    if unknown:
        raise UserError(
            f"strategy {name} has no option {', '.join(unknown)}: "
            + (f"it has {', '.join(fields)}." if fields else "it has none.")
        )
    return cls(**given)
