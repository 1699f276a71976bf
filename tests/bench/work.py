"""The processor's time of single reviews, quotas included: hostile bodies, and objects at every limit and far beyond."""

import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tests.bench.figures import Progress
from tests.webhook.app_client import AppClient
from tests.webhook.serving.hostile_bodies import bodies
from tests.webhook.serving.hostile_program import POLICY, client_with_quotas
from tests.webhook.serving.long_objects import long_reviews

BODIES, SEED = 20_000, 7
MAX_MILLISECONDS = 50
"""What a review may take on an idle machine: with 8 tenants who send nothing else, another one waits for two of these."""
SHOWN = 5


def milliseconds(client: AppClient, endpoint: str, body: bytes, times: int) -> float:
    """Return the time of one review: its best of several."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        client.post(endpoint, body)
        taken.append(time.process_time() - began)
    return min(taken) * 1000


def hostile(client: AppClient) -> Iterator[tuple[float, str]]:
    """Yield the reviews of random bodies; one that is not the fastest at once is tried again."""
    for number, body in enumerate(islice(bodies(SEED), BODIES)):
        took = milliseconds(client, body.endpoint, body.data, 1)
        if took > 1:
            took = min(took, milliseconds(client, body.endpoint, body.data, 2))
        yield took, f"body {number} to {body.endpoint}"


def long(client: AppClient) -> Iterator[tuple[float, str]]:
    for endpoint in ("/mutate", "/validate"):
        for namespace in ("defaults", "strict"):
            for name, body in long_reviews(namespace):
                yield milliseconds(client, endpoint, body, 3), f"{name} to {endpoint}, {namespace}"


def compare(progress: Progress) -> Iterator[str]:
    """Yield the slowest reviews of each kind, the slowest first."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "policy.yaml").write_text(POLICY)
        client, _ = client_with_quotas(Path(folder))
    yield f"Milliseconds of the processor for one review; at most {MAX_MILLISECONDS} on an idle machine"
    for title, reviews in (
        (f"{BODIES} hostile bodies", hostile(client)),
        ("objects at and above limits", long(client)),
    ):
        progress(f"work: {title}")
        yield f"  {title}, the slowest:"
        yield from (f"    {took:6.1f}  {name}" for took, name in sorted(reviews, reverse=True)[:SHOWN])
