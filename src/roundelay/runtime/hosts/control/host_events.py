"""Events of other hosts, as whoever coordinates them hears of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from roundelay.runtime.hosts.control.peers import RemoteHost
from roundelay.runtime.messages import Address, Message


@final
@dataclass(frozen=True)
class HostEvents:
    """Functions that are called when something happens to another host.

    Attributes:
        kinds: messages that hosts may say besides those about membership.
        message: for each of these, from that host's thread.
        left: when a host is gone, from any thread; how many minibatches come back from it for others.
        moved: with the addresses of all hosts and the ranks of each, when one is lost or comes.
        came: for each host that takes part from now on; says that its learners live, or will.
    """

    kinds: Sequence[type[Message]]
    message: Callable[[RemoteHost, Message], None]
    left: Callable[[RemoteHost], int]
    moved: Callable[[Sequence[Address], Sequence[Sequence[int]]], None]
    came: Callable[[RemoteHost], None]
