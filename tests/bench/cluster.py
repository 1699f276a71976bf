"""What admission costs a whole cluster: GPU pods created through a real API server, admitted in several ways."""

from collections.abc import Iterator, Mapping
from math import isinf
from statistics import median

from tests.bench.before import Version
from tests.bench.blocks import CEL, CLIENTS, CREATES, DIFFER, EQUAL, Costs, run
from tests.bench.figures import API_SERVER, CONTROLLER, ETCD, WEBHOOK, Progress, cpu_column, percentile
from tests.bench.intervals import Interval, median_interval, paired


def compare(versions: list[Version], *, rounds: int, progress: Progress) -> Iterator[str]:
    """Measure so many blocks of every row."""
    return lines(run(versions, (EQUAL, DIFFER), laps=rounds, progress=progress), rounds)


def lines(measured: Mapping[Version, dict[str, Costs]], laps: int) -> Iterator[str]:
    yield f"CLUSTER: GPU pods created through a real API server by {CLIENTS} clients: {laps} blocks of {CREATES} for each row"
    yield "(differ: each pod has an argument of its own; the others differ in what no rule reads; CPU in ms per create;"
    yield "of CEL: all of the CPU as a share of that with the two CEL policies in the same lap, the median and its interval of"
    yield "95 %; never: registered without matchConditions)"
    yield ""
    yield f"{'':<36} {'p50 ms':>6} {'p99 ms':>6}   API etcd hook contr.   all of CEL"
    for version, rows in measured.items():
        for name, costs in rows.items():
            ordered = sorted(costs.milliseconds)
            latency = f"{percentile(ordered, 50):>6.1f} {percentile(ordered, 99):>6.1f}"
            medians = {server: median(values) for server, values in costs.cpu_ms.items()}
            columns = zip((API_SERVER, ETCD, WEBHOOK, CONTROLLER), (5, 4, 4, 6), strict=True)
            cpu = " ".join(cpu_column(medians.get(server), width) for server, width in columns)
            share = shown(median_interval(of_cel(rows, name)))
            yield f"{version.after(name):<36} {latency} {cpu} {median(costs.all_cpu_ms):>5.2f} {share}"
    if len(measured) > 1:
        yield ""
        yield "now as a share of before, each as a share of its own API server's CEL policies:"
        before, now = measured.values()
        for name in now:
            yield f"{name:<36} {shown(median_interval(paired(of_cel(now, name), of_cel(before, name))))}"


def of_cel(rows: Mapping[str, Costs], name: str) -> list[float]:
    """Return the CPU of a row as a share of that of the CEL policies for such pods, lap by lap."""
    reference = rows[f"{CEL}{DIFFER if name.endswith(DIFFER) else EQUAL}"]
    return paired(rows[name].all_cpu_ms, reference.all_cpu_ms)


def shown(interval: Interval) -> str:
    """Return the median and its interval, and a remark where that is wide."""
    if isinf(interval.error):
        return f"{interval.median:.2f} (too few laps for an interval)"
    remark = f", wide: ±{interval.error:.0%}" if interval.is_wide else ""
    return f"{interval.median:.2f} ({interval.low:.2f} to {interval.high:.2f}{remark})"
