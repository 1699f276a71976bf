"""Settings of the edge, and the error for those that cannot work."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

MEBIBYTE = 1024 * 1024

# kube-apiserver keeps an idle connection for 90 s (net/http IdleConnTimeout) and does not repeat a POST that meets a closed
# one, so ours must live longer.
API_SERVER_IDLE_SECONDS = 90

_LAST_PORT = 65535
_LEAST = dict.fromkeys(("threads", "max_concurrent", "connections", "body_limit", "buffer_limit"), 1.0)
_LEAST |= dict.fromkeys(("handshake_seconds", "request_seconds", "response_seconds", "graceful_seconds"), 0.1)
_LEAST |= {"drain_seconds": 0}


class StartupError(Exception):
    """The server cannot start, for a reason its operator can act on: a line for each problem, and exit code 2."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of connections. All times in seconds, all sizes in bytes."""

    threads: int = 32
    # Requests held at once, worked on or waiting. Eight turns of all threads: as long as none takes more than a quarter
    # of a second, the last is done within 2 s, the shortest time that kube-apiserver gives a call to us.
    max_concurrent: int = 256
    connections: int = 1000
    body_limit: int = 8 * MEBIBYTE  # two copies of an object of 3 MiB, which is all that the API server takes
    buffer_limit: int = 64 * MEBIBYTE  # bytes of requests and answers held at once, over all connections
    keepalive_seconds: float = 110
    handshake_seconds: float = 10  # net/http gives up after as long
    request_seconds: float = 10  # from the first byte of a request to its last
    response_seconds: float = 10  # for the client to take the answer off our hands


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(Limits):
    """Where to serve, with which certificate, and how to stop. Raises StartupError.

    There is no number of worker processes: counters and the ledger's queue live in one process, and replicas scale.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_names: tuple[str, ...] = ()  # whose certificates may call
    host: str = "0.0.0.0"  # noqa: S104 - the API server reaches a pod on its pod address
    port: int = 8443
    metrics_host: str = "0.0.0.0"  # noqa: S104 - Prometheus likewise
    metrics_port: int = 9443
    drain_seconds: float = 15  # serving on after SIGTERM, until every endpoint list has forgotten us
    graceful_seconds: float = 15  # for requests in flight when draining ends

    def __post_init__(self) -> None:
        if problems := [*self._problems(), *self._caller_problems()]:
            raise StartupError("\n".join(problems))

    def _problems(self) -> Iterator[str]:
        for name, least in _LEAST.items():
            if (value := getattr(self, name)) < least:
                yield f"{name}: {value} must be at least {least:g}"
        for name in ("port", "metrics_port"):
            if not 0 <= (port := getattr(self, name)) <= _LAST_PORT:
                yield f"{name}: {port} is not a port (1 to {_LAST_PORT}; 0 picks a free one)"
        if self.port == self.metrics_port != 0:
            yield f"metrics_port: {self.metrics_port} is the port of the webhook itself"
        if self.keepalive_seconds <= API_SERVER_IDLE_SECONDS:
            idle = f"{API_SERVER_IDLE_SECONDS}, the idle time of the API server's connections"
            yield f"keepalive_seconds: {self.keepalive_seconds} must be more than {idle}"
        if self.connections < self.threads:
            yield f"connections: {self.connections} leaves some of {self.threads} threads without work"
        if self.buffer_limit < self.body_limit:
            yield f"buffer_limit: {self.buffer_limit} must not be less than body_limit, {self.body_limit}"

    def _caller_problems(self) -> Iterator[str]:
        if self.client_ca is not None and not all(self.client_names or ("",)):
            # An authority commonly issues certificates to others, too: that of a cluster to each of its nodes.
            yield "client_names: must name the callers: client_ca alone would admit every certificate of these authorities"
        if self.client_names and self.client_ca is None:
            yield "client_ca: must be the authorities that issue the certificates of client_names"
