"""Strategies by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import yaml

from roundelay.core.configure import build
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
    """The strategy called `name`, which may carry options (see `parse_strategy`); they go before `options`.

    Raises:
        UserError: no such strategy or option, or a value of the wrong type; lists those there are.
    """
    name, written = parse_strategy(name)
    given = {**(options or {}), **written}
    cls = STRATEGIES.get(name)
    if cls is None:
        raise UserError(f"there is no strategy {name!r}: choose one of {', '.join(STRATEGIES)}.")
    fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # every strategy is a dataclass
    unknown = sorted(set(given) - set(fields))
    if unknown:
        raise UserError(
            f"strategy {name} has no option {', '.join(unknown)}: "
            + (f"it has {', '.join(fields)}." if fields else "it has none.")
        )
    return build(cls, given, name)


def parse_strategy(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of a strategy written in one word: NAME, NAME:TOPOLOGY, NAME,KEY=VALUE,..., or both.

    `bmuf,period=20,nesterov=true` is ("bmuf", {"period": 20, "nesterov": True}); values are YAML, so a list may hold
    commas. Whether the strategy and its options exist is for `make_strategy` to say.

    Raises:
        UserError: no name, an option without a value or given twice; shows how to write it.
    """
    head, *assignments = _split_outside_brackets(text)
    name, colon, topology = head.partition(":")
    how = f"strategy {text!r}: write NAME, NAME:TOPOLOGY or NAME,KEY=VALUE, for example bmuf,period=20,nesterov=true"
    if not name or (colon and not topology):
        raise UserError(f"{how}.")
    options: dict[str, Any] = {"topology": topology} if topology else {}
    for assignment in assignments:
        key, _, value = (part.strip() for part in assignment.partition("="))
        if not key or not value:
            raise UserError(f"{how}; {assignment!r} is not KEY=VALUE.")
        if key in options:
            raise UserError(f"{how}; {key} is given twice.")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"{how}; {value!r} is not a value.") from None
    return name, options


def _split_outside_brackets(text: str) -> list[str]:
    """Split at commas that stand outside [...] and {...}."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
