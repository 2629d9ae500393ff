"""Options of a run on several hosts, as recipes and the exchange take them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, final

from roundelay.algorithms.codecs import CODECS
from roundelay.core.bounds import Count, Positive, ShareAboveZero
from roundelay.core.codec import FP32, Codec
from roundelay.core.configure import check_values, one_of
from roundelay.core.errors import UserError
from roundelay.strategies import STRATEGIES, make_strategy, option_names, parse_strategy
from roundelay.strategies.base import Strategy

AUTO: Literal["auto"] = "auto"


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """Options of training on several hosts: part of the section `training` of a recipe, and of the terms between hosts.

    docs/options.md explains each.

    Raises:
        UserError: an option has an impossible value; names the option.
    """

    host_patience: Positive = 10.0
    """Several hosts, seconds of silence after which a host counts as dead."""
    wire: str = one_of(CODECS, AUTO)
    """Several hosts, codec of rows and gradients on the network where the strategy says none; auto sends rows that no
    learner waits for by the speed of the link, and all else in fp32."""
    fragments: Count | Literal["auto"] = AUTO
    """Several hosts, an exchange carries one of so many parts of the row, in turn; auto for as many as make it short on
    the link where no learner waits, else 1."""
    encrypt: bool = True
    """Several hosts, hide what goes between them; without it everything is authenticated all the same."""
    exchange_share: ShareAboveZero = 0.02
    """Several hosts, share of the busy cores' time that exchanges which no learner waits for may take; 1 for as often
    as the link allows."""
    means: Literal["auto", "chain", "gloo", "nccl"] = "auto"
    """Several hosts, way of means between them; chain has the bits of one host; gloo and nccl are faster, equal to
    rounding, protect nothing and need trusted_network; auto is nccl between GPUs on a trusted network, else chain
    (docs/hosts.md)."""
    trusted_network: bool = False
    """Several hosts: others that reach their network may read and change means by gloo or nccl."""

    def __post_init__(self) -> None:
        check_values(self, "training")
        if self.means in ("gloo", "nccl"):
            self._check_group()

    def _check_group(self) -> None:
        if not self.trusted_network:
            raise UserError(
                f"training.means is {self.means}, which neither authenticates nor encrypts what it sends: others "
                "that reach the network between the hosts could read means and change them. Where none do, say "
                "training.trusted_network: true; the chain, which is the default, needs no trust."
            )
        if not self.codec.exact:
            raise UserError(
                f"training.wire is {self.wire}, but means by {self.means} go in full precision: leave one of them out."
            )

    @property
    def codec(self) -> Codec:
        """Codec of gradients in means."""
        return FP32 if self.wire == AUTO else CODECS[self.wire]

    def library(self, on_gpus: bool) -> Literal["gloo", "nccl"] | None:
        """Return the library that takes means over hosts; None: they go along the chain.

        Args:
            on_gpus: True if learners of all hosts compute on GPUs.
        """
        if self.means == "auto":
            return "nccl" if on_gpus and self.trusted_network and self.codec.exact else None
        return None if self.means == "chain" else self.means


@final
@dataclass(frozen=True, kw_only=True)
class SessionHostOptions(HostOptions):
    """Options of a session of attached learners on several hosts."""

    # of a host that gives no answer, so that no other knows whether it lives: a majority decides whether to go on
    # without it, or it counts as dead, for users that know that their network is not cut in two.
    silence: Literal["majority", "dead"] = "majority"


def session_strategy(name: str, options: Mapping[str, Any]) -> Strategy:
    """Return the strategy called `name`, which may carry options, with `options`.

    Raises:
        UserError: as `make_strategy`; or an option is one of `HostOptions`, and not of the strategy.
    """
    kind = STRATEGIES.get(parse_strategy(name)[0])
    own = option_names(kind) if kind is not None else options
    for between in ("listen", *(field.name for field in fields(SessionHostOptions))):
        if between in options and between not in own:
            raise UserError(
                f"strategy {name} has no option {between}: it is one between hosts, "
                f"attach(..., hosts={{{between!r}: {options[between]!r}}})."
            )
    return make_strategy(name, options)
