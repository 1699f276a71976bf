"""A control plane of its own: what is installed here would meet every other test's pods."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.deploy.installed import remove
from tests.controlplane import ControlPlane
from tests.deploy.helm_needed import need_helm

AUDIT_POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: ["system:serviceaccounts:gpu-admission"]}
"""


@pytest.fixture(scope="session", autouse=True)
def _helm() -> None:
    need_helm()


@pytest.fixture(scope="package")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what the API server writes about requests of our service accounts, one JSON object a line."""
    return tmp_path_factory.mktemp("audit") / "audit.log"


@pytest.fixture(scope="package")
def plane(audit_log: Path) -> Iterator[ControlPlane]:
    """Serve the API with controllers: Deployments make pods, which meet the namespace's pod security profile."""
    policy = audit_log.with_name("policy.yaml")
    policy.write_text(AUDIT_POLICY)
    arguments = (f"--audit-policy-file={policy}", f"--audit-log-path={audit_log}")
    with ControlPlane(controllers=True, apiserver_args=arguments) as own:
        yield own


@pytest.fixture
def _afterwards(plane: ControlPlane) -> Iterator[None]:
    yield
    remove(plane)
