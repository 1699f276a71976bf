"""Tables for people, 80 columns wide."""

from collections.abc import Iterator

from tests.bench import api, bursts, cluster, edge, hot
from tests.bench.api import ApiReport
from tests.bench.cluster import ClusterReport
from tests.bench.edge import EdgeReport
from tests.bench.figures import Figures
from tests.bench.hot import HotReport
from tests.bench.quota import QuotaReport
from tests.bench.turns import ScaleReport


def edge_lines(report: EdgeReport) -> Iterator[str]:
    sizes = ", ".join(f"{path} {size} bytes" for path, size in report.review_bytes.items())
    yield "EDGE: one server process, TLS connections kept alive, reviews of a GPU pod"
    yield f"({sizes}); rate and p99 as multiples of"
    yield "what the no-op above has on the same server, CPU as a share of that before"
    yield ""
    yield f"{'clients':>7}  {'':<24} {'req/s':>6} {'p50 ms':>8} {'p99 ms':>8} {'CPU ms':>7} {'rate':>6} {'p99':>6} {'CPU':>6}"
    for clients in edge.CLIENTS:
        for row in report.figures:
            if row.clients == clients:
                yield _edge_line(report, row)
        yield ""
    yield f"CPU is the server's, per request; the clients' own was {_client_cost(report.figures)}."


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
    yield f"{'':<35} {'':<21}  CPU ms per create"
    yield (
        f"pod {'clients':>7} {'admitted by':<21} {'per s':>6} {'p50 ms':>7} {'p99 ms':>7} "
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
    counts = ", ".join(str(clients) for clients in cluster.CLIENTS)
    yield f"API server's CPU of a pod without GPUs, in ms beyond nothing, {counts} clients:"
    for name, by_clients in report.cpu_pod_ms.items():
        yield f"  {name:<21} " + " ".join(f"{by_clients[clients]:>+6.2f}" for clients in cluster.CLIENTS)


def _cluster_line(pod: str, row: Figures) -> str:
    webhook = row.cpu_ms.get(bursts.WEBHOOK)
    return (
        f"{pod:<3} {row.clients:>7} {row.subject:<21} {row.per_second:>6.0f} {row.p50_ms:>7.2f} {row.p99_ms:>7.2f} "
        f"{row.cpu_ms[bursts.API_SERVER]:>6.2f} {'–' if webhook is None else f'{webhook:.2f}':>7} {cluster.cost(row):>6.2f}"
    )


def quota_lines(report: QuotaReport) -> Iterator[str]:
    yield "QUOTA: GPU pods created through a real API server, both quota controllers running"
    yield ""
    yield f"{'':<50} {'per':>5}  CPU ms per create"
    yield (
        f"{'clients':>7} {'':<20} {'per s':>6} {'p50 ms':>7} {'p99 ms':>7} {'batch':>5} "
        f"{'API':>5} {'etcd':>4} {'hook':>4} {'contr.':>6}"
    )
    for clients in cluster.CLIENTS:
        for row in report.figures:
            if row.clients == clients:
                yield _quota_line(report, row)
        yield ""
    yield f"The clients' own CPU per create was {_client_cost(report.figures)}, on the same cores."


def _quota_line(report: QuotaReport, row: Figures) -> str:
    size = report.batches.get(row.subject, {}).get(row.clients)
    return (
        f"{row.clients:>7} {row.subject:<20} {row.per_second:>6.0f} {row.p50_ms:>7.2f} {row.p99_ms:>7.2f} "
        f"{f'{size:.1f}' if size else '–':>5} {_cpu(row, 5, 4, 4, 6)}"
    )


def hot_lines(report: HotReport) -> Iterator[str]:
    yield f"HOT: GPU pods created in one namespace by {hot.CLIENTS} clients, by replicas of serve"
    yield "(of no: rate as a share of that without a quota; a write: creations for each of the ledger;"
    yield "lost: share of the ledger's writes that met another's, and how many of 100 creations did)"
    yield ""
    yield f"{'':<58} CPU ms per create"
    yield (
        f"{'':<6} {'n':>1} {'quota':<5} {'per s':>5} {'of no':>5} {'p50 ms':>6} {'p99 ms':>6} {'a write':>7} {'lost':>4} "
        f"{'100':>4} {'API':>5} {'etcd':>4} {'hook':>4} {'contr':>5}"
    )
    for row in sorted(report.rows, key=lambda row: (row.replicas, row.version, row.quota)):
        figures = row.figures
        written = f"{row.per_write:>7.1f} {row.conflict_share:>4.0%} {row.conflicts:>4.1f}"
        quota = written if row.quota else f"{'–':>7} {'–':>4} {'–':>4}"
        yield (
            f"{row.version:<6} {row.replicas:>1} {'yes' if row.quota else 'no':<5} {figures.per_second:>5.0f} "
            f"{row.of_no_quota:>5.2f} {figures.p50_ms:>6.0f} {figures.p99_ms:>6.0f} {quota} {_cpu(figures, 5, 4, 4, 5)}"
        )


def scale_lines(report: ScaleReport) -> Iterator[str]:
    there = report.population
    pods = f"{there.pods} GPU pods in one namespace, {there.pods} over {there.namespaces} others"
    yield f"{report.title}: {pods}, on {there.nodes} nodes"
    yield ""
    versions = list(report.figures)
    yield f"{'':<59}" + "".join(f"{name:>10}" for name in versions)
    for subject, figures in report.figures[versions[0]].items():
        yield f"{subject}"
        for what in figures:
            columns = (f"{report.figures[name][subject][what]:>10.4g}" for name in versions)
            yield f"  {what:<57}" + "".join(columns)


def api_lines(report: ApiReport) -> Iterator[str]:
    yield f"API SERVER: its CPU for one pod, {api.CLIENTS} clients; of it the percentages of its profile"
    yield ""
    yield f"{'':<30} {'ms':>5} {'middle half':>12}  {'match':>5} {'mutate':>6} {'valid.':>6} {'patch':>5}"
    for row in report.rows:
        low, high = row.quartiles_ms
        shares = " ".join(
            f"{row.percent[part]:>{width}.1f}" if row.percent else f"{'–':>{width}}"
            for part, width in zip(api.PARTS, (5, 6, 6, 5), strict=True)
        )
        yield f"{row.pod} pod, {row.admitted_by:<21} {row.cpu_ms:>5.2f} {low:>5.2f}–{high:<6.2f}  {shares}"
    yield ""
    for pod, versions in report.more_ms.items():
        for name, more in versions.items():
            yield f"{more:+.2f} ms  {pod} pod, {name}: beyond nothing registered, median of neighbouring blocks"


def _cpu(row: Figures, *widths: int) -> str:
    columns = [f"{row.cpu_ms[name]:.2f}" if name in row.cpu_ms else "–" for name in bursts.SERVERS]
    return " ".join(f"{each:>{width}}" for each, width in zip(columns, widths, strict=True))


def _client_cost(rows: list[Figures]) -> str:
    costs = [row.client_cpu_ms for row in rows]
    return f"{min(costs):.2f} to {max(costs):.2f} ms"
