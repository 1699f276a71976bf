"""What the edge itself has to report."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class EdgeMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = Gauge("gpu_admission_connections", "Open TLS connections.", registry=registry)
        self.cut = Counter(
            "gpu_admission_connections_cut",
            "Connections closed on a client: for the deadline that it missed, or to make room.",
            ["reason"],
            registry=registry,
        )
        self.sent_away = Counter(
            "gpu_admission_connections_sent_away",
            "Idle connections closed at the end of a drain, with an answer that makes a request under way be repeated.",
            registry=registry,
        )
        self.held = Gauge(
            "gpu_admission_requests_held", "Requests that are worked on or wait for it.", registry=registry
        )
        self.shed = Counter(
            "gpu_admission_requests_shed",
            "Requests answered 503 with Retry-After, because --max-concurrent were held already.",
            registry=registry,
        )
