"""Terms that all hosts of a run have in common, and the hello of each when it comes.

Legend: P parameters.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from torch import Tensor

from roundelay.core.errors import UserError
from roundelay.runtime.hosts.options import HostOptions
from roundelay.runtime.hosts.transport.wire import Link
from roundelay.runtime.launch.world import PLACES, HostPlace
from roundelay.runtime.messages import Address, InvalidMessage, Message, Range, Rank, read
from roundelay.runtime.procs.processes import OnDeath
from roundelay.strategies import STRATEGIES
from roundelay.strategies.base import HostOption, Strategy

CONTROL, CHAIN, MIX, EXCHANGE = ROLES = ("control", "chain", "mix", "exchange")
"""Roles of links: a host's first one, to the coordinator, and those for means, for mixes and for exchanges."""


NO_SESSION = -1
"""Number in the place of a session's, for a link that only asks for the host's hello."""


class Hello(Message):
    """Words of one end of a link about itself; its kind is the role of the link."""

    @property
    def said(self) -> dict[str, Any]:
        """This hello as JSON, for the handshake."""
        return {"what": self.kind, **self.header}

    @classmethod
    def of(cls, link: Link, **most: float) -> Self:
        """Return the hello of the other end of `link`, for this class's role; `most` are upper bounds, as for
        `Dialect`.

        Raises:
            BadFrame: the other end said no such hello; the link is closed.
        """
        try:
            return read(cls, link.hello, **most)
        except InvalidMessage as error:
            raise link.blame(f"does not say who it is: {error}") from error


class HostHello(Hello, kind="host"):
    """Hello of a host that listens."""

    first: int  # its lowest rank
    life: str = ""  # tells its process from a later one
    # of a session: number of the session, how many led before, rank, life and address.
    leader: tuple[int, int, int, str, Address] | None = None
    ended: Annotated[int, Range(NO_SESSION)] = NO_SESSION  # number of the last session that it has left


class JoinHello(Hello, kind=CONTROL):
    """Hello of a host that comes to the coordinator."""

    ranks: tuple[int, int]  # its lowest rank, and how many it has
    learners: int
    agreement: dict[str, Any]  # what must be the same on all hosts
    address: Address
    life: str = ""
    session: Annotated[int, Range(NO_SESSION)] = 0
    stays: bool = False  # it has taken part before, under another that led


ChainNumber = tuple[int, int]
"""Number of a chain: the number of the part of a segment in which it is made, and that of its communicator."""
ALL_HOSTS: ChainNumber = (0, 0)
"""Number of the first chain, in which all hosts are."""


class PeerHello(Hello):
    """Hello of a host that comes for means or mixes."""

    what: str  # CHAIN or MIX
    host: int
    number: ChainNumber = ALL_HOSTS
    session: int = 0


class ExchangeHello(Hello, kind=EXCHANGE):
    """Hello of a learner of another host that comes for exchanges."""

    host: Rank
    rank: Rank
    life: str = ""  # tells its process from a later one
    requests: bool = False  # the link is for requests to lower ranks


def identity(rank: int) -> dict[str, Any]:
    """Return the identity of the host of lowest rank `rank`, for its hello: connectors look for just that host."""
    return {"what": "host", "first": rank}


@dataclass(frozen=True, kw_only=True)
class HostTerms(HostOptions):
    """Terms on which the hosts of a run or session deal with each other: options, patience and agreement."""

    patience_seconds: float = 300.0  # how long learners wait for each other, and hosts for others to start
    on_death: OnDeath = "replace"  # what the death of a learner means; under a synchronous strategy that of a host, too
    agreement: Mapping[str, Any] = field(default_factory=dict)  # what must be the same on all hosts, plain values
    agreed: str = "recipe"  # a word for all of it: the recipe of a run, or the script that attaches
    threads: int | None = None  # torch threads of each learner; None: a fair share of the cores
    on_gpus: bool = False  # learners of all hosts compute on GPUs
    trace: Path | None = None  # folder for the trace of what this host's learners do
    silence: Literal["majority", "dead"] = "majority"  # as `SessionHostOptions` has it
    session: int = 0  # number of the session, of several of one process

    @classmethod
    def of(cls, options: HostOptions, **others: Any) -> "HostTerms":
        """Return terms with these options; `others` are the remaining arguments."""
        return cls(**{option.name: getattr(options, option.name) for option in fields(HostOptions)}, **others)


def check_hosts(strategy: Strategy, on_death: str) -> None:
    """Check that a strategy can be trained on several hosts.

    Raises:
        UserError: the strategy cannot; says why, and names some that can.
    """
    check_may_travel(strategy)
    label = strategy.label
    if strategy.traits.synchronous and on_death not in ("auto", "stop", "go-on"):
        raise UserError(
            f"training.on_death is {on_death!r}: under {label} on several hosts the death of a learner ends the run, "
            "with a complete checkpoint, or the others go on. Choose stop; the same command goes on from there, also "
            "with fewer learners; or go-on."
        )
    if on_death == "go-on":
        check_may_go_on_between_hosts(strategy)


def check_may_travel(strategy: Strategy) -> None:
    """Check that learners of several hosts can train by this strategy.

    Raises:
        UserError: the strategy is for learners of one host alone.
    """
    if strategy.traits.one_host:
        raise UserError(
            f"{strategy.label} is for learners of one host: its exchanges meet what the other learner alone remembers, "
            "and that does not travel. Choose another strategy, or put all learners on one host."
        )


SENDS: Mapping[HostOption, str] = {
    "wire": "no rows or gradients whose codec a run chooses",
    "fragments": "no rows in fragments that a run chooses",
    "exchange_share": "no exchanges that links pace",
    "means": "no means of all learners in full precision",
}
"""Words, by option, for the things that a strategy does not send between hosts where the option has no effect."""
NOTHING_MORE: Mapping[HostOption, object] = {"wire": "fp32", "fragments": 1, "means": "chain"}
"""Values with which these options ask for nothing, so that saved recipes may give them to any strategy."""


def check_options(strategy: Strategy, options: HostOptions) -> None:
    """Check that the options between hosts that are given have an effect.

    Raises:
        UserError: an option has no effect under this strategy; says under which it has.
    """
    usual = HostOptions()
    for option, what in SENDS.items():
        value = getattr(options, option)
        if option in strategy.host_options or value in (getattr(usual, option), NOTHING_MORE.get(option)):
            continue
        names = ", ".join(name for name, cls in STRATEGIES.items() if option in cls().host_options)
        raise UserError(
            f"training.{option} is {value}, but {strategy.label} sends {what} between hosts, so that would have no "
            f"effect. Leave it out, or choose another strategy ({names})."
        )


def check_may_be_recorded(strategy: Strategy, options: HostOptions, on_gpus: bool) -> None:
    """Check that a run or a session on several hosts can be recorded, to be repeated on one.

    Raises:
        UserError: the strategy or the options forbid it; says why, and what can be done.
    """
    synchronous, gathers = strategy.traits.synchronous, strategy.traits.rebuilt_from == "gathering_base"
    if gathers or (strategy.memory and not synchronous and strategy.traits.model != "centre"):
        what = "gathers a quorum" if gathers else "exchanges more than rows"
        raise UserError(
            f"record: {strategy.label} on several hosts cannot be recorded: it {what} between them, of which a replay "
            "knows nothing. Choose another strategy (adpsgd, hadpsgd, divshare, asgd, easgd, or a synchronous one), "
            "record learners of one host, or leave record out."
        )
    centre = strategy.traits.model == "centre"
    if (synchronous or centre) and (not options.codec.exact or options.library(on_gpus)):
        raise UserError(
            "record: means between hosts, and exchanges with a centre, are repeated to the bit where they go along the "
            "chain and in full precision: leave wire and means between hosts out, or record."
        )
    if centre and on_gpus:
        raise UserError(
            f"record: {strategy.label} on several hosts, whose learners compute on GPUs, cannot be recorded: exchanges "
            "with a centre are repeated in the memory of the host alone. Choose the CPU, or leave record out."
        )


def check_may_go_on_between_hosts(strategy: Strategy) -> None:
    """Check that learners of several hosts can go on without those that are lost.

    Raises:
        UserError: the strategy is synchronous and sends coded vectors, which needs every host.
    """
    if strategy.traits.synchronous and not strategy.form.exact:
        raise UserError(
            f"on_death is 'go-on': under {strategy.label} each host sends its coded vectors to every other, and one "
            "that is lost may have told some and not others. Choose stop, or codec fp32."
        )


def check_may_join(strategy: Strategy, place: HostPlace) -> None:
    """Check that learners can join later, where the environment has places for them.

    Raises:
        UserError: there are such places, and learners cannot join under this strategy.
    """
    if strategy.traits.synchronous and len(place.first) < place.learners:
        raise UserError(
            f"rank {place.ranks[0]}: {PLACES} is {place.learners} and WORLD_SIZE {len(place.first)}, but under "
            f"{strategy.label} no learner can join those that train: choose an asynchronous strategy (adpsgd, hadpsgd, "
            "asgd, easgd), or begin with all."
        )


def fingerprint(row: Tensor) -> int:
    """Return the fingerprint of a starting point (P,): equal on two hosts if they begin with the same weights."""
    return zlib.crc32(row.cpu().numpy().tobytes())


def differing(ours: Any, theirs: Any, where: str = "") -> list[tuple[str, Any, Any]]:
    """Return the differences of two plain values: dotted keys, each with both values, None where one is missing. Of two
    lists, only the first items that differ are returned."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        keys = {**ours, **theirs}
        return [d for k in keys for d in differing(ours.get(k), theirs.get(k), f"{where}.{k}" if where else str(k))]
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        pairs = zip_longest(ours, theirs)
        return next(([(where, one, other)] for one, other in pairs if one != other), [])
    return [] if ours == theirs else [(where, ours, theirs)]


def host_of(ranks: Sequence[int]) -> str:
    """Return the name, for messages, of the host of learners `ranks`: the same on any host."""
    return f"the host of learner{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
