"""CPU time of single reviews, quotas included: hostile bodies, objects at every limit and far beyond, known nodes, claims."""

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from math import inf
from pathlib import Path

from tests.bench.figures import Progress
from tests.webhook.app_client import AppClient
from tests.webhook.serving.hostile_bodies import bodies
from tests.webhook.serving.hostile_program import POLICY, client_with_quotas
from tests.webhook.serving.long_objects import long_reviews
from tests.webhook.serving.reviews_of_claims import KINDS, client_with_devices, reviews_of_claims
from tests.webhook.serving.reviews_with_nodes import client_with_nodes, reviews_with_nodes

BODIES, SEED = 20_000, 7
MAX_MILLISECONDS = 50
"""What a review may take on an idle machine: with 8 tenants who send nothing else, another one waits for two of these."""
NODES, VALUES = 500, 8
"""Nodes, and values of each label by which classes select them."""
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


def with_nodes(client: AppClient) -> Iterator[tuple[float, str]]:
    """Yield the reviews on known nodes. Each is another one, because decisions on equal pods are kept."""
    least: dict[str, float] = defaultdict(lambda: inf)
    for mark in "warm up", "once", "twice", "thrice":
        for name, endpoint, body in reviews_with_nodes(mark):
            title = f"{name} to {endpoint}"
            least[title] = min(least[title], milliseconds(client, endpoint, body, 1))
    yield from ((took, title) for title, took in least.items())


def of_claims(client: AppClient) -> Iterator[tuple[float, str]]:
    """Yield the reviews of claims. Each is the best of several turns, whose claims have selectors that no turn before had."""
    least: dict[str, float] = defaultdict(lambda: inf)
    for turn in range(20):
        for name, body in reviews_of_claims(f"{turn}gb"):
            least[name] = min(least[name], milliseconds(client, "/validate", body, 1))
    yield from ((took, name) for name, took in least.items())


def compare(progress: Progress) -> Iterator[str]:
    """Yield the slowest reviews of each kind, the slowest first."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "policy.yaml").write_text(POLICY)
        client, _ = client_with_quotas(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        on_nodes = client_with_nodes(Path(folder), nodes=NODES, values=VALUES)
    with tempfile.TemporaryDirectory() as folder:
        with_devices = client_with_devices(Path(folder))
    yield f"Milliseconds of the processor for one review; at most {MAX_MILLISECONDS} on an idle machine"
    for title, reviews in (
        (f"{BODIES} hostile bodies", hostile(client)),
        ("objects at and above limits", long(client)),
        (f"pods and templates where {NODES} nodes are known", with_nodes(on_nodes)),
        (f"claims where {KINDS} kinds of devices are known", of_claims(with_devices)),
    ):
        progress(f"work: {title}")
        yield f"  {title}, the slowest:"
        yield from (f"    {took:7.2f}  {name}" for took, name in sorted(reviews, reverse=True)[:SHOWN])
