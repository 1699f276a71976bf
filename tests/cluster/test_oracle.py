"""The oracle of tests/oracle against a real API server and a real scheduler: the pod, its refusal, and the nodes that take it.

The worlds of a run are one cluster: each pod, in a namespace of its own, is held against the nodes of all worlds. An extender
records which nodes the scheduler's filters let through, and refuses them all, so that no pod changes what others find.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.cluster.versions import since
from tests.controlplane import Client, ControlPlane, accepted
from tests.oracle import Answer, World, oracle
from tests.oracle.worlds import NAMESPACE, Draw, draw_pod, draw_world
from tests.seed import SAID, SEED

EXTENDER = "a test refuses it"
BOUND, PROBE = "bound", "probe"
"""Namespaces of the pods that use nodes, and of what only tells whether the API server has caught up."""
NO_PODS = {"hard": {"pods": "0"}}
LAST_QUOTA: JSON = {
    "metadata": {"name": "last", "namespace": PROBE},
    "spec": NO_PODS,
    "status": {**NO_PODS, "used": {"pods": "0"}},
}
LAST_LIMITS: JSON = {
    "metadata": {"name": "last", "namespace": PROBE},
    "spec": {"limits": [{"type": "Pod", "min": {"cpu": "1"}}]},
}
GIVEN_LATER = ("uid", "creationTimestamp", "resourceVersion", "managedFields")
PLACED = re.compile(r"0/(\d+) nodes are available: (.*?)\.(?: |$)")

pytestmark = since(37, "the oracle is of 1.37")


class Extender:
    """Told of each pod which nodes passed the scheduler's filters; it refuses them."""

    def __init__(self) -> None:
        self.passed: dict[str, frozenset[str]] = {}
        """By the namespace of the pod."""

    def __call__(self, asked: Any) -> JSON:
        names = asked["NodeNames"]
        self.passed[asked["Pod"]["metadata"]["namespace"]] = frozenset(names)
        return {"NodeNames": [], "FailedAndUnresolvableNodes": dict.fromkeys(names, EXTENDER)}


class Cluster(NamedTuple):
    """The real ones."""

    plane: ControlPlane
    passed: dict[str, frozenset[str]]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    extender = Extender()
    with answering(extender) as address:
        scheduling = {
            "percentageOfNodesToScore": 100,  # else it stops filtering once it has found enough
            "extenders": [{"urlPrefix": address, "filterVerb": "filter", "nodeCacheCapable": True}],
        }
        # The nodes have the taints of their worlds, and none of a node that is new.
        arguments = ["--disable-admission-plugins=ServiceAccount,TaintNodesByCondition"]
        with ControlPlane(scheduler=True, apiserver_args=arguments, scheduler_config=scheduling) as plane:
            yield Cluster(plane, extender.passed)


@contextmanager
def answering(answer: Callable[[Any], JSON]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.dumps(answer(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        running = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        running.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            running.join()


def of_one_cluster(worlds: Sequence[World]) -> list[World]:
    """Return the worlds with names of their own: of namespaces, nodes, and the pods on them."""
    return [_renamed(world, f"w{number}") for number, world in enumerate(worlds)]


def _renamed(world: World, name: str) -> World:
    text = msgspec.json.encode(world).decode().replace('"node-', f'"{name}-node-')
    renamed = msgspec.json.decode(
        text.replace(f'"namespace":"{NAMESPACE}"', f'"namespace":"{name}"'), type=World
    )
    for each in renamed.bound:
        each["metadata"]["namespace"] = BOUND
    return renamed


# ---- the real ones


def everywhere(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(function, items))


def in_namespace(kind: str, document: JSON) -> str:
    return f"/api/v1/namespaces/{document['metadata']['namespace']}/{kind}"


def prepare(client: Client, worlds: Sequence[World]) -> None:
    """Create all but the pods, and wait until admission knows ResourceQuotas and LimitRanges."""

    def create(path: str, document: JSON) -> None:
        accepted(client.post(path, document))

    def create_all(kind: str, documents: Sequence[JSON]) -> None:
        everywhere(lambda each: create(in_namespace(kind, each), each), documents)

    def set_status(quota: JSON) -> None:
        path = f"{in_namespace('resourcequotas', quota)}/{quota['metadata']['name']}/status"
        accepted(client.patch(path, {"status": quota["status"]}))

    names = [BOUND, PROBE, *(world.namespace for world in worlds)]
    everywhere(lambda name: create("/api/v1/namespaces", {"metadata": {"name": name}}), names)
    # Admission asks for what its watches do not have, and keeps the answer: here nothing. So it learns of the probes of this
    # namespace as it learns of all that was created before.
    assert refusal(client) == ""
    everywhere(lambda each: create("/api/v1/nodes", each), [node for world in worlds for node in world.nodes])
    create_all("pods", [pod for world in worlds for pod in world.bound])
    quotas = [*(each for world in worlds for each in world.resource_quotas), LAST_QUOTA]
    create_all("resourcequotas", quotas)
    everywhere(set_status, quotas[:-1])
    set_status(LAST_QUOTA)
    assert eventually(lambda: "exceeded quota" in refusal(client))
    create_all("limitranges", [each for world in worlds for each in world.limit_ranges])
    create_all("limitranges", [LAST_LIMITS])
    assert eventually(lambda: "minimum cpu" in refusal(client))


def refusal(client: Client) -> str:
    """Return why a pod of the namespace of probes is refused, "" if it is not."""
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "main", "image": "probe"}]}}
    status, body = client.post(f"/api/v1/namespaces/{PROBE}/pods", pod, {"dryRun": "All"})
    return "" if status == 201 else str(body["message"])


def placements(client: Client, count: int, nodes: int) -> dict[str, str]:
    """Return, by namespace, what the scheduler says of the pods, which are so many, once it has seen all the nodes."""
    said: dict[str, str] = {}

    def complete() -> bool:
        for pod in client.get("/api/v1/pods", {"fieldSelector": "spec.nodeName="})[1]["items"]:
            for condition in pod["status"].get("conditions", ()):
                found = PLACED.match(condition.get("message", ""))
                if found and int(found[1]) == nodes:
                    said[pod["metadata"]["namespace"]] = found[2]
        return len(said) == count

    assert eventually(complete, seconds=90), f"{SAID}: of {count} pods {len(said)} were tried"
    return said


# ---- what differs


def plain(pod: JSON) -> JSON:
    """Return the pod without what the storage gives it."""
    metadata = {key: value for key, value in pod["metadata"].items() if key not in GIVEN_LATER}
    return {**pod, "metadata": metadata}


def words(message: str) -> list[str]:
    """Return its words in order of the alphabet: Go's maps, and so its lists of errors, have no order."""
    return sorted(re.split(r"[\s,\[\]]+", message))


def same_admission(answer: Answer, status: int, body: JSON) -> bool:
    if answer.pod is None or status != 201:
        messages = (answer.message, *(answer.instead or ()))
        return answer.code == status and words(body["message"]) in map(words, messages)
    return plain(answer.pod) == plain(body)


def as_text(answer: Answer) -> str:
    """Return the scheduler's sentence about these nodes, with those that the extender refuses."""
    refusals = (answer.nodes or {}).values()
    reasons = Counter(reason for each in refusals for reason in (each.reasons if each else (EXTENDER,)))
    return ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(SEED, SEED + 20), id="some"),
        pytest.param(range(SEED, SEED + 200), id="many", marks=pytest.mark.slow),
        *(
            pytest.param(
                range(SEED + start, SEED + start + 200),
                id=f"{start}-and-more",
                marks=[pytest.mark.slow, pytest.mark.long],
            )
            for start in range(200, 5_000, 200)
        ),
    ],
)
def test_the_oracle_answers_as_api_server_and_scheduler_do(cluster: Cluster, seeds: range) -> None:
    worlds = of_one_cluster([draw_world(Draw(seed)) for seed in seeds])
    client = cluster.plane.client()
    prepare(client, worlds)
    nodes = [node for world in worlds for node in world.nodes]
    bound = [pod for world in worlds for pod in world.bound]
    created = everywhere(lambda each: client.post(in_namespace("pods", each.pod), each.pod), worlds)

    differ: list[str] = []
    stored: dict[str, World] = {}
    for seed, world, (status, body) in zip(seeds, worlds, created, strict=True):
        answers = oracle().answers(world)
        if not any(same_admission(answer, status, body) for answer in answers):
            differ.append(f"{seed}: the API server answers {status} {body}, and the oracle {answers}")
        if status == 201:
            stored[world.namespace] = World(body, world.namespace, nodes=nodes, bound=bound)
    said = placements(client, len(stored), len(nodes))
    for name, world in stored.items():
        answer, passed = oracle().ask(world), cluster.passed.get(name, frozenset())
        if answer.room() != passed or as_text(answer) != said[name]:
            differ.append(
                f"{world.pod['spec']}: the scheduler would place it on {sorted(passed)} ({said[name]}), and by the oracle on "
                f"{sorted(answer.room())} ({as_text(answer)})"
            )

    assert not differ, f"{SAID}, {len(differ)} differences:\n" + "\n".join(differ[:10])
    assert len(stored) > len(seeds) / 10
    assert any(cluster.passed.values())


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(SEED, SEED + 60), id="some"),
        pytest.param(range(SEED, SEED + 1_000), id="many", marks=pytest.mark.slow),
    ],
)
def test_the_oracle_refuses_workloads_as_the_api_server_does(plane: ControlPlane, seeds: range) -> None:
    """Whether it takes their pods is another question, which the API server answers when their controller creates them."""
    drawn = [draw_workload(Draw(seed)) for seed in seeds]
    answered = everywhere(lambda each: plane.client().post(each[0], each[1], {"dryRun": "All"}), drawn)
    differ: list[str] = []
    for seed, (_, document), (status, body) in zip(seeds, drawn, answered, strict=True):
        answer = oracle().ask(World(document, "default"))
        is_of_pod = answer.message.lower().startswith("pod")
        if status == 201:
            if answer.code != 201 and not is_of_pod:
                differ.append(
                    f"{seed}: the API server takes {document}, and the oracle says {answer.message}"
                )
        elif (answer.code, words(answer.message)) != (status, words(body["message"])):
            differ.append(f"{seed}: the API server says {body['message']} and the oracle {answer.message}")

    assert not differ, f"{SAID}, {len(differ)} differences:\n" + "\n".join(differ[:10])
    assert {status for status, _ in answered} >= {201, 422}


KINDS = (
    "batch/v1 Job",
    "batch/v1 CronJob",
    *(f"apps/v1 {each}Set" for each in ("Replica", "Stateful", "Daemon")),
)


def draw_workload(draw: Draw) -> tuple[str, JSON]:
    """Return where to POST a workload with a drawn pod, and the workload, which may have a mistake of its own."""
    version, kind = draw.choice((*KINDS, "apps/v1 Deployment")).split()
    labels = {"app": "train"}
    template = {"metadata": {"labels": labels}, "spec": draw_pod(draw)["spec"]}
    spec: JSON = {"template": template}
    if version == "batch/v1":
        template["spec"]["restartPolicy"] = draw.choice(("Never", "Never", "Never", "Always"))
        spec |= draw.choice(({}, {}, {"backoffLimit": -1}, {"activeDeadlineSeconds": 60}))
    else:
        spec["selector"] = {"matchLabels": draw.choice((labels, labels, labels, {"app": "other"}))}
        spec |= draw.choice(({}, {}, {"minReadySeconds": -1}))
    if kind == "CronJob":
        spec = {"schedule": draw.choice(("0 4 * * *", "0 4 * *")), "jobTemplate": {"spec": spec}}
    document = {"apiVersion": version, "kind": kind, "metadata": {"name": "train"}, "spec": spec}
    return f"/apis/{version}/namespaces/default/{kind.lower()}s", document
