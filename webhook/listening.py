"""Sockets that listen, and why one cannot, in words."""

import os
import socket

# For a burst of kube-apiserver dials (25 and more a server) while who accepts them is busy.
BACKLOG = 1024


class CannotListenError(Exception):
    """The message names the address and the reason."""


def listen(host: str, port: int) -> socket.socket:
    """Listen on a name or address, `::` for both families; port 0 takes a free one. Raises CannotListenError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(
            address[:2],
            family=family,
            backlog=BACKLOG,
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        # The message of create_server repeats the address.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise CannotListenError(f"cannot listen on {host} port {port}: {reason}") from error
