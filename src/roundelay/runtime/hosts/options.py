"""Options of a run on several hosts, as recipes and the exchange take them."""

from dataclasses import dataclass

from roundelay.algorithms.codecs import CODECS, codec_named
from roundelay.core.configure import one_of
from roundelay.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """Part of the section `training` of a recipe, and of the terms between hosts.

    Args:
        host_patience: seconds of silence after which a host counts as dead.
        wire: name of the codec by which rows are exchanged with other hosts, and gradients go into a mean with them.
        fragments: number of exchanges in which a row is through.
        encrypt: hide what goes between hosts, besides authenticating it.
        exchange_share: share of the time of busy cores for exchanges with other hosts that no learner waits for.

    Raises:
        UserError: a value that cannot be; names the option.
    """

    host_patience: float = 10.0
    wire: str = one_of(CODECS, "fp32")
    fragments: int = 1
    encrypt: bool = True
    exchange_share: float = 0.04

    def __post_init__(self) -> None:
        if not self.host_patience > 0:
            raise UserError(f"training.host_patience is {self.host_patience}: give seconds, above 0.")
        codec_named(self.wire, "training.wire")
        if self.fragments < 1:
            raise UserError(f"training.fragments is {self.fragments}: at least one is needed, which is the whole row.")
        if not 0 < self.exchange_share <= 1:
            raise UserError(f"training.exchange_share is {self.exchange_share}: give a share above 0, at most 1.")
