"""A whole control plane with our webhook and controller installed, beside which others do what they do."""

from collections.abc import Iterator

import pytest

from tests.cluster.controllers import Running
from tests.cluster.neighbours.team import Team
from tests.cluster.other_webhook import OtherWebhook
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import install_quota_kind
from tests.controlplane.webhook import Webhook, serving
from webhook.configuration.loader import load_directory

POLICIES = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  rules:
    gpu-isolation: {mode: enforce}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: only-t4}
spec:
  priority: 1
  match: {namespaces: ["only-t4*"]}
  rules:
    gpu-class: {allowed: [nvidia-t4]}
"""


@pytest.fixture(scope="package")
def webhook(full_plane: ControlPlane) -> Iterator[Webhook]:
    install_quota_kind(full_plane.client())
    arguments = ("--kubeconfig", full_plane.kubeconfig())
    with (
        serving(full_plane, POLICIES, host=16, arguments=arguments) as running,
        Running(full_plane, configuration=load_directory(running.config), expiry=5.0),
    ):
        yield running


@pytest.fixture
def installed(full_plane: ControlPlane, webhook: Webhook) -> ControlPlane:  # noqa: ARG001 - it has to run
    return full_plane


@pytest.fixture
def team(installed: ControlPlane) -> Team:
    return Team(installed)


@pytest.fixture
def other(installed: ControlPlane, team: Team) -> Iterator[OtherWebhook]:
    """Serve somebody else's webhook for the pods of the team; it is not registered yet."""
    with OtherWebhook(installed, team.name) as other:
        yield other
