"""Options between hosts that would have no effect under a strategy are refused: none is silently without one."""

import re
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from roundelay.core.effects import Begin, Effect, Exchange, GradMean, Mean
from roundelay.core.errors import UserError
from roundelay.core.flat import WHOLE
from roundelay.runtime.hosts.options import SessionHostOptions
from roundelay.runtime.hosts.terms import check_options
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import EVERY, MANY, cluster, make_strategy, plan
from support.session_hosts import place, request

LEARNERS = 4
CODED = (
    "divshare fragments=1",
    "diloco period=3 codec=int8",
    "diloco period=3 codec=int8 local_momentum=average",
    "sparseloco period=3 local_momentum=average",
    "gossip-diloco period=3 partners=null local_momentum=average",
    "bsp period=3 quorum=2",
)
GIVEN: dict[str, Any] = {"wire": "int8", "fragments": 8, "exchange_share": 0.5, "means": "gloo"}


def passed_on(
    role: Generator[Effect[Any], Any, None], note: Callable[[Effect[Any]], None]
) -> Generator[Effect[Any], Any, None]:
    """A learner whose effects are noted."""
    reply = None
    while True:
        try:
            effect = role.send(reply)
        except StopIteration:
            return
        note(effect)
        reply = yield effect


def serves(effect: Effect[Any], begun: bool = False) -> set[str]:
    """Options between hosts that such an effect goes by."""
    match effect:
        case Begin():
            return serves(effect.effect, begun=True)
        case GradMean() if len(effect.group) == LEARNERS and effect.codec.exact:
            return {"wire", "means"}
        case Mean() if len(effect.group) == LEARNERS and effect.codec.exact:
            return {"means"}
        case Exchange():
            plain = not (effect.private or effect.theirs) and effect.since is None and effect.fragment == WHOLE
            return ({"wire", "fragments"} if plain else set()) | ({"exchange_share"} if begun else set())
    return set()


@pytest.mark.parametrize("name", [*MANY, *CODED])
def test_a_strategy_names_the_options_that_its_effects_go_by(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is on one host, so what its members do together goes by none."""
    strategy, seen = make_strategy(name), set[str]()
    learn: Callable[..., Any] = type(strategy).learn
    monkeypatch.setattr(
        type(strategy), "learn", lambda self, me: passed_on(learn(self, me), lambda effect: seen.update(serves(effect)))
    )
    with SimRuntime(cluster(name, LEARNERS, momentum=0.9)) as runtime:
        runtime.segment(plan(7, LEARNERS))
    assert strategy.host_options == seen


@pytest.mark.parametrize("name", [*EVERY, *CODED])
def test_an_option_without_effect_is_refused_and_no_other(name: str) -> None:
    strategy, trusted = make_strategy(name), SessionHostOptions(trusted_network=True, encrypt=False, host_patience=3.0)
    check_options(strategy, trusted)
    check_options(strategy, replace(trusted, means="chain"))
    for option, value in GIVEN.items():
        if option in strategy.host_options:
            check_options(strategy, replace(trusted, **{option: value}))
            continue
        refusal = f"training.{option} is {value}, but {strategy.label} sends no "
        with pytest.raises(UserError, match=re.escape(refusal)):
            check_options(strategy, replace(trusted, **{option: value}))


def test_whoever_is_refused_is_told_where_the_option_has_an_effect() -> None:
    with pytest.raises(UserError, match=r"\(async-gasloc, adpsgd, hadpsgd, a2cid2, divshare\)"):
        check_options(make_strategy("bsp"), SessionHostOptions(exchange_share=1.0))
    with pytest.raises(UserError, match=r"\(ssgd, easgd, adpsgd, hadpsgd\)"):
        check_options(make_strategy("asgd"), SessionHostOptions(wire="bf16"))


def test_attached_learners_are_refused_too() -> None:
    asked = request(place(0, 0), "hadpsgd")
    asked.to_json()
    with pytest.raises(UserError, match=r"training\.means is nccl, but hadpsgd"):
        replace(asked, options=SessionHostOptions(means="nccl", trusted_network=True)).to_json()
    silent = SessionHostOptions(silence="dead")
    with pytest.raises(UserError, match=r"silence is 'dead', but under"):
        replace(request(place(0, 0), "bsp"), options=silent).to_json()
    replace(request(place(0, 0), "asgd"), options=silent).to_json()  # another host can lead, and makes its centre again
