"""All objects of gpu-admission are deleted, and its processes are killed: the policies in files of the API server hold."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import gpu_container, pod
from tests.cluster.controllers import Command, eventually
from tests.cluster.export_comparison import ISOLATED, answers_to, compared, placed
from tests.cluster.exported import (
    CHOSEN,
    EXEMPTED,
    NAMESPACES,
    POLICY,
    TEAM,
    await_force,
    configuration,
    create,
    installed,
    namespace,
)
from tests.cluster.generated_pods import NEVER_GENERATED, pods
from tests.cluster.static.files import reading, written
from tests.controlplane import ControlPlane, accepted, minor_version
from tests.controlplane.webhook import CONFIGURATION_PATHS, Webhook
from webhook.evaluation.decision_cache import DecisionCache

pytestmark = pytest.mark.skipif(
    minor_version() < 37, reason="API servers read policies from files since 1.37"
)

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
HOST = 14


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("everything-gone")


@pytest.fixture(scope="module")
def bereft(folder: Path) -> Iterator[ControlPlane]:
    """Serve the API with the files, after an installation with stored policies has worked and was taken away."""
    with reading(written(folder, POLICY, guarded=())) as plane:
        client = plane.client()
        for name in NAMESPACES:
            client.apply(namespace(name))
        await_force(plane)
        arguments = ("--kubeconfig", plane.kubeconfig())
        with Webhook(plane, config=folder / "documents", host=HOST, arguments=arguments) as webhook:
            webhook.register()
            controller = Command(plane, "controller", "--config", str(folder / "documents"))
            controller.start()
            with installed(plane, configuration(folder)):
                accepted(create(client, pod(gpu_container()), TEAM))
                webhook.kill()
                plane.kill(controller.name)
                refused = create(client, pod(gpu_container()), TEAM)
                assert (refused[0], "failed calling webhook" in refused[1]["message"]) == (500, True)
            for path in CONFIGURATION_PATHS:
                accepted(client.delete(path))
            for kind in accepted(client.get(CRDS))["items"]:
                accepted(client.delete(f"{CRDS}/{kind['metadata']['name']}"))
        assert eventually(lambda: create(client, pod(gpu_container()), TEAM)[0] == 201)
        yield plane


@pytest.mark.parametrize(
    "number", [200, pytest.param(2000, marks=(pytest.mark.slow, pytest.mark.timeout(1200)))]
)
def test_shape_rules_hold(bereft: ControlPlane, folder: Path, number: int) -> None:
    engine = DecisionCache(configuration(folder))
    cases = placed([*NEVER_GENERATED, *pods(number)], [*NAMESPACES, TEAM, *[CHOSEN] * 3])

    found = compared(engine, cases, answers_to(bereft.client(), cases))

    print(dict(found.seen))  # noqa: T201  the figures, shown by -rA
    assert found.differences[:3] == [], f"{len(found.differences)} of {len(cases)} differ"
    rules = ("gpu-requests", "gpu-class", "max-runtime", "deadline")
    assert all(found.seen[each] for each in (*rules, *ISOLATED)), found.seen
    assert found.seen[f"201 in {EXEMPTED}"] > number / 25, found.seen
