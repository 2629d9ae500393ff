"""Addresses of hosts, as users write them and as this host has them."""

import socket
from collections.abc import Sequence

from roundelay.core.errors import UserError

Address = tuple[str, int]

PEERS = "ROUNDELAY_PEERS"
"""Variable with the hosts that may lead when the first is lost: ADDRESS or ADDRESS:PORT, with commas between them."""


def listening(text: str, port: int, option: str = "--listen") -> Address:
    """Parse an address to listen at: `10.0.0.1`, `10.0.0.1:4000`, `[fd00::1]:4000`; `port` if it has none.

    Raises:
        UserError: `text` is no address; names the `option`.
    """
    host, colon, number = text.rpartition(":") if "]:" in text or text.count(":") == 1 else (text, "", "")
    if colon and not number.isdigit():
        raise UserError(f"{option} {text!r}: write ADDRESS or ADDRESS:PORT.")
    return host.strip("[]"), int(number) if colon else port


def read_peers(text: str, port: int, hosted: bool) -> tuple[Address, ...]:
    """Parse the hosts that the variable PEERS names, with `port` for those without one.

    Raises:
        UserError: an address is invalid, or `hosted`: peers cannot be named under `torchrun`.
    """
    found = tuple(listening(one.strip(), port, PEERS) for one in text.split(",") if one.strip())
    if found and hosted:
        raise UserError(
            f"{PEERS} is set under torchrun, whose own group ends with its first host: start each host by itself, as "
            f"docs/attach.md does by hand, or unset {PEERS}."
        )
    return found


def read_relay(listen: str | None, rank: int, first: str) -> Address | None:
    """Return the address of the relay that `listen` names (`relay`, `relay=ADDRESS:PORT`); ("", 0) for the first host,
    at `first`; None if it names no relay.

    Raises:
        UserError: the relay's address is invalid, or this is the first host.
    """
    word, equals, text = (listen or "").partition("=")
    if word != "relay":
        return None
    if rank == 0:
        raise UserError(
            f"rank 0: the others look for this host at {first}, so it must be reached there: --listen relay is for "
            "others. Make a host the first that all can connect to."
        )
    found = listening(text, 0) if equals else ("", 0)
    if equals and not (found[0] and found[1]):
        raise UserError(f"rank {rank}: --listen {listen!r}: write relay, or relay=ADDRESS:PORT of a host of the run.")
    return found


def port_among(peers: Sequence[Address], own: str) -> int:
    """Return the port at which this host, of address `own`, is to listen if it is one of `peers`; 0 if none or several
    of them have that address."""
    found = [port for host, port in peers if own in _resolved(host)]
    return found[0] if len(found) == 1 else 0


def _resolved(host: str) -> set[str]:
    try:
        return {str(one[4][0]) for one in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)}
    except OSError:  # a name that is known only while its host runs
        return set()


def own_address(ways: Sequence[str], rank: int) -> str:
    """Return the address this host has on its way to the first of `ways` whose name is known. Nothing is sent.

    Raises:
        UserError: there is no way to any of them.
    """
    for number, where in enumerate(ways, 1):
        try:
            family, _, _, _, there = socket.getaddrinfo(where, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(there)
                return str(probe.getsockname()[0])
        except OSError as error:
            if number == len(ways):
                raise UserError(
                    f"rank {rank}: MASTER_ADDR is {ways[0]!r}, which cannot be reached from here ({error.strerror}). "
                    "Mend it, or say by --listen ADDRESS which address of this host the others are to use."
                ) from error
    raise ValueError("no address is given")
