"""Tolerations with operator Gt or Lt, on an API server that accepts them (feature gate, alpha in 1.35 and 1.36)."""

from collections.abc import Iterator
from http import HTTPStatus

import pytest

from tests.builders import JSON, gpu_container, pod
from tests.cluster.exported import POLICY, TEAM, create, installed
from tests.cluster.test_export_differential import additions, expected
from tests.controlplane import ControlPlane
from tests.controlplane.build import minor_version
from webhook.configuration.loader import load_directory
from webhook.serving.engine import Engine

GATE = "TaintTolerationComparisonOperators"
KNOWN_SINCE = 35
TIER = "950"
"""Value of the taint `tier` that the policy lists."""

pytestmark = pytest.mark.skipif(minor_version() < KNOWN_SINCE, reason="its API server knows no Gt and Lt")


def comparing(operator: str, value: str, key: str = "tier") -> JSON:
    return {"key": key, "operator": operator, "value": value, "effect": "NoSchedule"}


def test_by_default_the_api_server_refuses_them(exported: ControlPlane) -> None:
    document = pod(gpu_container(), tolerations=[comparing("Gt", "900")])

    status, answer = create(exported.client(), document)

    assert status == HTTPStatus.UNPROCESSABLE_ENTITY
    assert 'Unsupported value: "Gt"' in answer["message"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("tiers")
    dedicated = "- {key: dedicated, value: ml-workloads, effect: NoSchedule}"
    tier = f'- {{key: tier, value: "{TIER}", effect: NoSchedule}}'
    (folder / "policy.yaml").write_text(POLICY.replace(dedicated, tier))
    return Engine(load_directory(folder))


@pytest.fixture(scope="module")
def plane(engine: Engine) -> Iterator[ControlPlane]:
    with (
        ControlPlane(controllers=True, apiserver_args=[f"--feature-gates={GATE}=true"]) as plane,
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
    plane: ControlPlane, engine: Engine, toleration: JSON, is_enough: bool
) -> None:
    document = pod(gpu_container(), tolerations=[toleration])

    status, answer = create(plane.client(), document)

    assert status == HTTPStatus.CREATED, answer
    want = expected(engine, document, TEAM, mutating=True)
    assert additions(answer) == additions(want.pod)
    equal = [each for each in answer["spec"]["tolerations"] if each.get("operator", "Equal") == "Equal"]
    assert any(each["value"] == TIER for each in equal) is not is_enough
