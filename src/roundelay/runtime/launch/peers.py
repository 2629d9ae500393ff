"""The user at the other end of a Unix socket, as the kernel knows it."""

import socket
import struct

_CREDENTIALS = struct.Struct("3i")  # process, user, group


def peer_user(connection: socket.socket) -> int:
    """The user of the process that listened, or connected, at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])
