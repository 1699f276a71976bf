"""What the API server itself pays for being registered with it: pods with and without GPUs."""

from collections.abc import Iterator
from statistics import median

from tests.bench.before import Version
from tests.bench.blocks import CLIENTS, CPU, CREATES, EQUAL, NOTHING, run
from tests.bench.figures import API_SERVER, Progress
from tests.bench.intervals import median_interval


def compare(versions: list[Version], *, rounds: int, progress: Progress) -> Iterator[str]:
    """Measure so many blocks of either kind of pods under each admission."""
    measured = run(versions, (EQUAL, CPU), laps=rounds, progress=progress)
    yield f"API SERVER: its CPU for one pod, {CLIENTS} clients: {rounds} blocks of {CREATES} for each row"
    yield "(beyond: what nothing registered costs in the same lap; the median of the differences and its interval of 95 %)"
    yield ""
    yield f"{'':<36} {'ms':>5} beyond"
    for version, rows in measured.items():
        for name, costs in rows.items():
            nothing = rows[f"{NOTHING}{CPU if name.endswith(CPU) else EQUAL}"].cpu_ms[API_SERVER]
            taken = costs.cpu_ms[API_SERVER]
            beyond = median_interval([ours - theirs for ours, theirs in zip(taken, nothing, strict=True)])
            difference = f"{beyond.median:+.2f} ({beyond.low:+.2f} to {beyond.high:+.2f})"
            yield f"{version.after(name):<36} {median(taken):>5.2f} {difference}"
