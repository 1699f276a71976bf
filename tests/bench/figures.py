"""From the samples of all rounds to one row of figures: medians of rates and costs, percentiles over all requests."""

from collections.abc import Sequence
from statistics import median

import msgspec

from tests.bench.measure import Sample

Milliseconds = float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One subject at one number of clients. CPU is per request, by server; `client_cpu_ms` is the load generator's own."""

    subject: str
    clients: int
    per_second: float
    p50_ms: Milliseconds
    p99_ms: Milliseconds
    cpu_ms: dict[str, Milliseconds]
    client_cpu_ms: Milliseconds

    @property
    def total_cpu_ms(self) -> Milliseconds:
        return sum(self.cpu_ms.values())


def figures(subject: str, clients: int, samples: Sequence[Sample]) -> Figures:
    requests = len(samples[0].outcome.milliseconds)
    pooled = sorted(value for sample in samples for value in sample.outcome.milliseconds)
    return Figures(
        subject=subject,
        clients=clients,
        per_second=median(sample.rate for sample in samples),
        p50_ms=percentile(pooled, 50),
        p99_ms=percentile(pooled, 99),
        cpu_ms={
            server: median(sample.cpu_seconds[server] for sample in samples) / requests * 1000
            for server in samples[0].cpu_seconds
        },
        client_cpu_ms=median(sample.outcome.client_cpu_seconds for sample in samples) / requests * 1000,
    )


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least so many percent of all do not exceed (nearest rank)."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(rank, 1) - 1]


def cpu_ratio(samples: Sequence[Sample], reference: Sequence[Sample]) -> float:
    """Return the CPU as a share of the reference's, over all rounds: the kernel counts in steps of 10 ms."""
    ours, theirs = (sum(sum(sample.cpu_seconds.values()) for sample in each) for each in (samples, reference))
    return ours / theirs


def ratio(samples: Sequence[Sample], reference: Sequence[Sample]) -> float:
    """Return the rate as a share of the reference's: the median over rounds, each against its neighbour in time."""
    return median(ours.rate / theirs.rate for ours, theirs in zip(samples, reference, strict=True))
