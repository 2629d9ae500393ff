"""Strategies by name: who talks to whom and when, a file each.

Other packages bring further ones by entry points of the group `roundelay.strategies`, each with the name of its
strategy.
"""

from collections.abc import Mapping
from typing import Any

from roundelay.core.configure import build, in_order
from roundelay.core.plugins import WithPlugins
from roundelay.core.strategy_text import check_choice, parse_strategy
from roundelay.strategies.a2cid2 import A2CiD2
from roundelay.strategies.adpsgd import AdPsgd
from roundelay.strategies.asgd import Asgd
from roundelay.strategies.async_diloco import AsyncDiLoCo
from roundelay.strategies.async_gasloc import AsyncGasLoC
from roundelay.strategies.base import Strategy
from roundelay.strategies.bmuf import Bmuf, BmufFairseq
from roundelay.strategies.bsp import Bsp
from roundelay.strategies.choco import ChocoSgd
from roundelay.strategies.delay_by_one import DelayByOne
from roundelay.strategies.delayed_gradient import DelayedGradient
from roundelay.strategies.diloco import DiLoCo
from roundelay.strategies.divshare import DivShare
from roundelay.strategies.dpsgd import DPsgd
from roundelay.strategies.easgd import Easgd, EasgdSync
from roundelay.strategies.gasloc import GasLoC
from roundelay.strategies.gossip_diloco import GossipDiLoCo
from roundelay.strategies.gossip_pga import GossipPga
from roundelay.strategies.hadpsgd import HAdPsgd
from roundelay.strategies.rennala import Rennala
from roundelay.strategies.sgd import SerialSgd
from roundelay.strategies.slowmo import SlowMo
from roundelay.strategies.sparseloco import SparseLoCo
from roundelay.strategies.sparta import Sparta
from roundelay.strategies.ssgd import Ssgd

_OWN: Mapping[str, type[Strategy]] = {
    cls.name: cls
    for cls in (
        SerialSgd,
        Ssgd,
        Bsp,
        Bmuf,
        BmufFairseq,
        SlowMo,
        Sparta,
        DiLoCo,
        SparseLoCo,
        Asgd,
        Rennala,
        AsyncDiLoCo,
        Easgd,
        EasgdSync,
        DPsgd,
        ChocoSgd,
        GossipPga,
        GossipDiLoCo,
        GasLoC,
        AsyncGasLoC,
        AdPsgd,
        HAdPsgd,
        A2CiD2,
        DivShare,
        DelayByOne,
        DelayedGradient,
    )
}


STRATEGIES = WithPlugins("strategies", _OWN)
"""Classes of all strategies, those of other installed packages last."""


def make_strategy(name: str, options: Mapping[str, Any] | None = None) -> Strategy:
    """Make the strategy called `name`, which may carry options (see `parse_strategy`) that take precedence over
    `options`.

    Raises:
        UserError: no such strategy or option, or a value of the wrong type; lists all.
    """
    name, written = parse_strategy(name)
    given = {**(options or {}), **written}
    check_choice(name, given, STRATEGIES, lambda: option_names(STRATEGIES[name]))
    return build(STRATEGIES[name], given, name)


def option_names(cls: type[Strategy]) -> list[str]:
    """Return the names of a strategy's options."""
    return [field.name for field in in_order(cls)]


__all__ = ["STRATEGIES", "make_strategy", "option_names", "parse_strategy"]
