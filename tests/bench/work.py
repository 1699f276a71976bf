"""The processor's time of single reviews, quotas included: hostile bodies, and objects at every limit and far beyond."""

import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from tests.webhook.app_client import AppClient
from tests.webhook.serving.hostile_bodies import bodies
from tests.webhook.serving.hostile_program import POLICY, client_with_quotas
from tests.webhook.serving.long_objects import long_reviews

BODIES, SEED = 20_000, 7
MOST_MILLISECONDS = 50
"""What a review may take on an idle machine: with 8 tenants who send nothing else, another one waits for two of these."""
SHOWN = 5


class Review(msgspec.Struct, frozen=True, order=True):
    """The time of one review, in milliseconds of the processor: its best of several."""

    milliseconds: float
    name: str


def measured(client: AppClient, name: str, endpoint: str, body: bytes, times: int) -> Review:
    taken = []
    for _ in range(times):
        began = time.process_time()
        client.post(endpoint, body)
        taken.append(time.process_time() - began)
    return Review(round(min(taken) * 1000, 2), name)


def hostile(client: AppClient, count: int) -> Iterator[Review]:
    """Yield the reviews of random bodies; one that is not the fastest at once is tried again."""
    for number, body in enumerate(islice(bodies(SEED), count)):
        name = f"body {number} to {body.endpoint}"
        first = measured(client, name, body.endpoint, body.data, 1)
        yield (
            min(first, measured(client, name, body.endpoint, body.data, 2))
            if first.milliseconds > 1
            else first
        )


def long(client: AppClient) -> Iterator[Review]:
    for endpoint in ("/mutate", "/validate"):
        for namespace in ("defaults", "strict"):
            for name, body in long_reviews(namespace):
                yield measured(client, f"{name} to {endpoint}, {namespace}", endpoint, body, 3)


def compare(*, count: int = BODIES, progress: Callable[[str], None]) -> dict[str, list[Review]]:
    """Return the slowest reviews of each kind, the slowest first."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "policy.yaml").write_text(POLICY)
        client, _ = client_with_quotas(Path(folder))
    reports = {}
    for title, reviews in (
        (f"{count} hostile bodies", hostile(client, count)),
        ("objects at and above limits", long(client)),
    ):
        progress(f"work: {title}")
        reports[title] = sorted(reviews, reverse=True)[:SHOWN]
    return reports


def lines(reports: dict[str, list[Review]]) -> Iterator[str]:
    yield f"Milliseconds of the processor for one review; at most {MOST_MILLISECONDS} on an idle machine"
    for title, slowest in reports.items():
        yield f"  {title}, the slowest:"
        yield from (f"    {each.milliseconds:6.1f}  {each.name}" for each in slowest)
