"""Tables for people, 80 columns wide."""

from collections.abc import Iterator

from tests.bench import cluster, edge, quota
from tests.bench.cluster import ClusterReport
from tests.bench.edge import EdgeReport
from tests.bench.figures import Figures, Target
from tests.bench.quota import QuotaReport


def edge_lines(report: EdgeReport) -> Iterator[str]:
    sizes = ", ".join(f"{path} {size} bytes" for path, size in report.review_bytes.items())
    yield "EDGE: one server process, TLS connections kept alive, reviews of a GPU pod"
    yield f"({sizes}); rate and p99 as multiples of"
    yield "what the no-op above has on the same server, CPU as a share of the edge's before"
    yield ""
    yield f"{'clients':>7}  {'':<24} {'req/s':>6} {'p50 ms':>8} {'p99 ms':>8} {'CPU ms':>7} {'rate':>6} {'p99':>6} {'CPU':>6}"
    for clients in edge.CLIENTS:
        for row in report.figures:
            if row.clients == clients:
                yield _edge_line(report, row)
        yield ""
    yield f"CPU is the server's, per request; the clients' own was {_client_cost(report.figures)}."
    yield from _targets(report.targets)


def _edge_line(report: EdgeReport, row: Figures) -> str:
    rate = report.rate_ratios.get(row.subject, {}).get(row.clients)
    p99 = report.p99_ratios.get(row.subject, {}).get(row.clients)
    line = (
        f"{row.clients:>7}  {row.subject:<24} {row.per_second:>6.0f} {row.p50_ms:>8.2f} {row.p99_ms:>8.2f} "
        f"{row.total_cpu_ms:>7.2f}"
    )
    if rate is None or p99 is None:
        return line
    cpu = report.cpu_ratios.get(row.subject, {}).get(row.clients)
    return f"{line} {rate:>5.2f}× {p99:>5.2f}×" + ("" if cpu is None else f" {cpu:>5.2f}×")


def cluster_lines(report: ClusterReport) -> Iterator[str]:
    yield "CLUSTER: pods created through a real API server"
    yield ""
    yield f"{'':<35} {'':<25}  CPU ms per create"
    yield (
        f"pod {'clients':>7}  {'admitted by':<16} {'creates/s':>9} {'p50 ms':>8} {'p99 ms':>8} "
        f"{'API':>6} {'webhook':>7} {'both':>6}"
    )
    for pod, rows in report.figures.items():
        for clients in cluster.CLIENTS:
            for row in rows:
                if row.clients == clients:
                    yield _cluster_line(pod, row)
            yield ""
    clients_cost = _client_cost([row for rows in report.figures.values() for row in rows])
    yield f"The clients' own CPU per create was {clients_cost}, on the same cores."
    yield from _targets(report.targets)


def _cluster_line(pod: str, row: Figures) -> str:
    webhook = row.cpu_ms.get(cluster.WEBHOOK)
    return (
        f"{pod:<3} {row.clients:>7}  {row.subject:<16} {row.per_second:>9.0f} {row.p50_ms:>8.2f} {row.p99_ms:>8.2f} "
        f"{row.cpu_ms[cluster.API_SERVER]:>6.2f} {'–' if webhook is None else f'{webhook:.2f}':>7} {cluster.cost(row):>6.2f}"
    )


def quota_lines(report: QuotaReport) -> Iterator[str]:
    yield "QUOTA: GPU pods created through a real API server, both quota controllers running"
    yield ""
    yield f"{'':<32} {'':<25} {'per':>6}  CPU ms per create"
    yield (
        f"{'clients':>7} {'':<24} {'creates/s':>9} {'p50 ms':>7} {'p99 ms':>7} {'batch':>6} "
        f"{'API':>5} {'webhook':>7} {'contr.':>6}"
    )
    for clients in cluster.CLIENTS:
        for row in report.figures:
            if row.clients == clients:
                yield _quota_line(report, row)
        yield ""
    yield f"The clients' own CPU per create was {_client_cost(report.figures)}, on the same cores."
    yield from _targets(report.targets)


def _quota_line(report: QuotaReport, row: Figures) -> str:
    batch = f"{report.batches[row.clients]:.1f}" if row.subject == quota.GPU_QUOTA else "–"
    cpu = [f"{row.cpu_ms[name]:.2f}" if name in row.cpu_ms else "–" for name in quota.SERVERS]
    return (
        f"{row.clients:>7} {row.subject:<24} {row.per_second:>9.0f} {row.p50_ms:>7.2f} {row.p99_ms:>7.2f} {batch:>6} "
        f"{cpu[0]:>5} {cpu[1]:>7} {cpu[2]:>6}"
    )


def _client_cost(rows: list[Figures]) -> str:
    costs = [row.client_cpu_ms for row in rows]
    return f"{min(costs):.2f} to {max(costs):.2f} ms"


def _targets(targets: list[Target]) -> Iterator[str]:
    yield ""
    for target in targets:
        yield f"{'met' if target.met else 'MISSED':<7} {target.figure:>5.2f}  {target.what}"
