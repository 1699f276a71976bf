"""The exported policies against our own engine, over pods of others; generated ones: static/test_three_ways.py."""

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any

import pytest

from tests.builders import JSON, container, gpu_container, pod
from tests.cluster.export_comparison import Comparison, additions, answers_to, compared, expected
from tests.cluster.exported import EXEMPTED, POLICY, TEAM, configuration, create, installed
from tests.cluster.generated_pods import pods_of_others
from tests.controlplane import ControlPlane
from tests.corpus import CORPUS
from tests.gpu_stacks import AGENTS, VALIDATORS
from webhook.configuration.loader import load_directory
from webhook.evaluation.decision_cache import DecisionCache

Compare = Callable[[Iterable[JSON], str], Comparison]


@pytest.fixture(scope="module")
def compare(exported: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """Return the function that tries the pods on the API server and in the engine."""
    engine = DecisionCache(configuration(tmp_path_factory.mktemp("engine")))

    def compare(documents: Iterable[JSON], namespace: str) -> Comparison:
        cases = [(document, namespace) for document in documents]
        return compared(engine, cases, answers_to(exported.client(), cases))

    return compare


def test_pods_of_gpu_stacks_start_unchanged_in_an_exempted_namespace(compare: Compare) -> None:
    stack = [*AGENTS.values(), *VALIDATORS.values()]

    found = compare(stack, EXEMPTED)

    assert found.differences == []
    assert found.seen == {"allowed": len(stack), f"201 in {EXEMPTED}": len(stack)}


IMPLICIT = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"


def each_requesting(*amounts: JSON, **spec: Any) -> JSON:
    """Return a pod with a container for each of these amounts, all of which are limits."""
    containers = [
        gpu_container(name=f"c{number}", resources={"limits": each}) for number, each in enumerate(amounts)
    ]
    return pod(*containers, **spec)


AROUND_CONDITIONS = (
    *(each_requesting({name: "99"}) for name in ("nvidia.com/gpu", "amd.com/gpu", IMPLICIT)),
    *(each_requesting({IMPLICIT: amount}) for amount in ("16", "1e1")),
    each_requesting(*({"nvidia.com/gpu": "1"} for _ in range(17))),
    each_requesting({}, initContainers=[gpu_container("100", "init")]),
    each_requesting({}, initContainers=[gpu_container("16", "proxy", restartPolicy="Always"), gpu_container("1")]),
    each_requesting({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "101"}),
    each_requesting({"NVIDIA.com/gpu": "99"}),
    pod(container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": each} for each in ("void", "all")])),
    pod(container(), initContainers=[container("first", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])]),
    pod(container(volumeMounts=[{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}]),
        volumes=[{"name": "v", "emptyDir": {}}]),
    pod(container(volumeMounts=[{"name": "v", "mountPath": "/x"}]),
        volumes=[{"name": "v", "hostPath": {"path": "/dev"}}]),
    pod(container(), annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
)  # fmt: skip
"""Pods that are wrong in places of which match conditions read only a part, and pods that are almost wrong there."""


def test_match_conditions_leave_out_no_pod_that_the_engine_denies(compare: Compare) -> None:
    found = compare(AROUND_CONDITIONS, TEAM)

    assert found.differences == []
    assert found.seen["allowed"] < len(AROUND_CONDITIONS) / 2, found.seen


@pytest.mark.skipif(
    not CORPUS.is_dir(), reason="no folder of manifests (shared/corpus, or GPU_ADMISSION_CORPUS)"
)
def test_exported_policies_and_engine_agree_over_the_corpus(compare: Compare) -> None:
    documents = list(pods_of_others())

    found = compare(documents, TEAM)

    assert found.differences[:3] == [], f"{len(found.differences)} of {len(documents)} differ"
    assert found.seen["invalid"] < len(documents) / 4, found.seen
    assert found.seen["allowed"] > len(documents) / 4, found.seen


# ---- tolerations with operator Gt or Lt (feature gate, alpha since 1.35)

GATE = "TaintTolerationComparisonOperators"
TIER = "950"
"""Value of the taint `tier` that the policy lists."""


def comparing(operator: str, value: str, key: str = "tier") -> JSON:
    return {"key": key, "operator": operator, "value": value, "effect": "NoSchedule"}


def test_by_default_the_api_server_refuses_them(exported: ControlPlane) -> None:
    document = pod(gpu_container(), tolerations=[comparing("Gt", "900")])

    status, answer = create(exported.client(), document)

    assert status == HTTPStatus.UNPROCESSABLE_ENTITY
    assert 'Unsupported value: "Gt"' in answer["message"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> DecisionCache:
    folder = tmp_path_factory.mktemp("tiers")
    dedicated = "- {key: dedicated, value: ml-workloads, effect: NoSchedule}"
    tier = f'- {{key: tier, value: "{TIER}", effect: NoSchedule}}'
    (folder / "policy.yaml").write_text(POLICY.replace(dedicated, tier))
    return DecisionCache(load_directory(folder))


@pytest.fixture(scope="module")
def comparing_plane(engine: DecisionCache) -> Iterator[ControlPlane]:
    with (
        ControlPlane(controllers=True, gates=[GATE]) as plane,
        installed(plane, engine.configuration),
    ):
        yield plane


@pytest.mark.slow
@pytest.mark.parametrize(
    ("toleration", "is_enough"),
    [
        pytest.param(comparing("Gt", "900"), True, id="950-is-greater"),
        pytest.param(comparing("Gt", "950"), False, id="the-same-value"),
        pytest.param(comparing("Gt", "1000"), False, id="950-is-not-greater"),
        pytest.param(comparing("Lt", "1000"), True, id="950-is-less-as-a-number"),
        pytest.param(comparing("Lt", "-1"), False, id="950-is-not-less"),
        pytest.param(comparing("Gt", "1", key="level"), False, id="another-key"),
    ],
)
def test_engine_and_export_add_what_it_does_not_tolerate(
    comparing_plane: ControlPlane, engine: DecisionCache, toleration: JSON, is_enough: bool
) -> None:
    document = pod(gpu_container(), tolerations=[toleration])

    status, answer = create(comparing_plane.client(), document)

    assert status == HTTPStatus.CREATED, answer
    want = expected(engine, document, TEAM)
    assert additions(answer) == additions(want.pod)
    equal = [each for each in answer["spec"]["tolerations"] if each.get("operator", "Equal") == "Equal"]
    assert any(each["value"] == TIER for each in equal) is not is_enough
