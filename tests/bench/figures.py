"""From the samples of all rounds to one row of figures: medians of rates and costs, percentiles over all requests."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from tests.bench.measure import Sample

CLIENTS = (1, 8, 32)
"""How many at once, where a part compares that."""
API_SERVER, ETCD, WEBHOOK, CONTROLLER = "kube-apiserver", "etcd", "webhook", "controller"

Progress = Callable[[str], None]
Key = tuple[str, int]
"""A subject, and the number of clients."""
Samples = dict[Key, list[Sample]]
Milliseconds = float


class Figures(NamedTuple):
    """One subject at one number of clients. CPU is per request, by server; `client_cpu_ms` is the load generator's own."""

    per_second: float
    p50_ms: Milliseconds
    p99_ms: Milliseconds
    cpu_ms: dict[str, Milliseconds]
    client_cpu_ms: Milliseconds

    def cpu_columns(self, *widths: int) -> str:
        """Return the CPU of API server, etcd, webhook and controller."""
        servers = zip((API_SERVER, ETCD, WEBHOOK, CONTROLLER), widths, strict=True)
        return " ".join(cpu_column(self.cpu_ms.get(name), width) for name, width in servers)


def cpu_column(milliseconds: float | None, width: int) -> str:
    return f"{'–' if milliseconds is None else f'{milliseconds:.2f}':>{width}}"


def figures(samples: Sequence[Sample]) -> Figures:
    requests = len(samples[0].outcome.milliseconds)
    pooled = sorted(value for sample in samples for value in sample.outcome.milliseconds)
    return Figures(
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


def table(samples: Samples, head: str, more: Callable[[Key, Figures], str]) -> Iterator[str]:
    """Yield a line for each number of clients and subject, which ends with `more` under `head`."""
    rows = {key: figures(taken) for key, taken in samples.items()}
    yield f"{'clients':>7} {'':<36} {'per s':>6} {'p50 ms':>7} {'p99 ms':>7} {head}"
    for clients in CLIENTS:
        for (name, number), row in rows.items():
            if number == clients:
                shown = f"{row.per_second:>6.0f} {row.p50_ms:>7.2f} {row.p99_ms:>7.2f}"
                yield f"{clients:>7} {name:<36} {shown} {more((name, clients), row)}"
        yield ""
    costs = [row.client_cpu_ms for row in rows.values()]
    yield f"The clients' own CPU was {min(costs):.2f} to {max(costs):.2f} ms each, on the same cores."
