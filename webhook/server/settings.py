"""Settings of the HTTP server, and the error for those that cannot work."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

MEBIBYTE = 1024 * 1024
CONNECTIONS = 1000


class StartupError(Exception):
    """The server cannot start, for a reason its operator can act on: a line for each problem, and exit code 2."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of connections. All times in seconds, all sizes in bytes."""

    threads: int = 32
    # Requests held at once, worked on or waiting. Eight turns of all threads: as long as none takes more than a quarter
    # of a second, the last is done within 2 s, the shortest time that kube-apiserver gives a call to us.
    max_concurrent: int = 256
    connections: int = CONNECTIONS
    body_limit: int = 8 * MEBIBYTE  # two copies of an object of 3 MiB, which is all that the API server takes
    buffer_limit: int = 64 * MEBIBYTE  # bytes of requests and answers held at once, over all connections
    # kube-apiserver keeps an idle connection for 90 s (net/http IdleConnTimeout) and does not repeat a POST that meets a closed
    # one, so ours must live longer.
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
        if problems := list(self._problems()):
            raise StartupError("\n".join(problems))

    def _problems(self) -> Iterator[str]:
        if self.port == self.metrics_port != 0:
            yield f"metrics_port: {self.metrics_port} is the port of the webhook itself"
        if self.client_ca is not None and not (self.client_names and all(self.client_names)):
            # An authority commonly issues certificates to others, too: that of a cluster to each of its nodes.
            yield "client_names: must name the callers: client_ca alone would admit every certificate of these authorities"
        if self.client_names and self.client_ca is None:
            yield "client_ca: must be the authorities that issue the certificates of client_names"
