"""Options of a run on several hosts, as recipes and the exchange take them."""

from dataclasses import dataclass
from typing import Literal, final

from roundelay.algorithms.codecs import CODECS, codec_named
from roundelay.core.codec import FP32, Codec
from roundelay.core.configure import one_of
from roundelay.core.errors import UserError

AUTO: Literal["auto"] = "auto"


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """Part of the section `training` of a recipe, and of the terms between hosts.

    docs/options.md says what each is.

    Raises:
        UserError: a value that cannot be; names the option.
    """

    host_patience: float = 10.0
    wire: str = one_of((AUTO, *CODECS), AUTO)
    fragments: int | Literal["auto"] = AUTO
    encrypt: bool = True
    exchange_share: float = 0.02
    means: Literal["auto", "chain", "gloo", "nccl"] = "auto"
    trusted_network: bool = False

    def __post_init__(self) -> None:
        if not self.host_patience > 0:
            raise UserError(f"training.host_patience is {self.host_patience}: give seconds, above 0.")
        if self.wire != AUTO:
            codec_named(self.wire, "training.wire")
        if self.fragments != AUTO and self.fragments < 1:
            raise UserError(f"training.fragments is {self.fragments}: at least one is needed, which is the whole row.")
        if not 0 < self.exchange_share <= 1:
            raise UserError(f"training.exchange_share is {self.exchange_share}: give a share above 0, at most 1.")
        if self.means in ("gloo", "nccl"):
            self._check_group()

    def _check_group(self) -> None:
        if not self.trusted_network:
            raise UserError(
                f"training.means is {self.means}, which neither authenticates nor encrypts what it sends: whoever "
                "reaches the network between the hosts could read means and change them. Where nobody else does, say "
                "training.trusted_network: true; the chain, which is the default, needs no trust."
            )
        if not self.codec.exact:
            raise UserError(
                f"training.wire is {self.wire}, but means by {self.means} go in full precision: leave one of them out."
            )

    @property
    def codec(self) -> Codec:
        """The codec of gradients in means."""
        return FP32 if self.wire == AUTO else CODECS[self.wire]

    def library(self, on_gpus: bool) -> Literal["gloo", "nccl"] | None:
        """Return the library that takes means over hosts; None: they go along the chain.

        Args:
            on_gpus: do learners of all hosts compute on GPUs?
        """
        if self.means == "auto":
            return "nccl" if on_gpus and self.trusted_network and self.codec.exact else None
        return None if self.means == "chain" else self.means


@final
@dataclass(frozen=True, kw_only=True)
class SessionHostOptions(HostOptions):
    """The same of a session of attached learners.

    Args:
        silence: of a host that nobody can ask whether it lives: a majority decides whether to go on without it, or it
            counts as dead, which is for those to say who know that their network is not cut in two.
    """

    silence: Literal["majority", "dead"] = "majority"
