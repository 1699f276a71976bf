"""`serve` and a controller under the names of an installation, with a policy by which pods wait in line."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.controllers import Running, published_catalogues
from tests.cluster.waiting.line import POLICY, Line, account_api, let_account_do_all
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import install_quota_kind
from tests.controlplane.webhook import Webhook, serving
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import CONTROLLER
from webhook.configuration.loader import load_directory


@contextmanager
def queueing_webhook(plane: ControlPlane, policies: str = POLICY) -> Iterator[Webhook]:
    install_quota_kind(plane.client())
    let_account_do_all(plane)
    with (
        published_catalogues(plane),
        serving(plane, policies, arguments=("--kubeconfig", plane.kubeconfig())) as webhook,
    ):
        yield webhook


@contextmanager
def queueing(
    plane: ControlPlane, policies: str = POLICY, *, api: ApiClient | None = None
) -> Iterator[Running]:
    """Run both. `api` is that of the controller, left out: of the ServiceAccount that serve expects."""
    with (
        queueing_webhook(plane, policies) as webhook,
        Running(
            plane,
            lease=CONTROLLER,
            api=api or account_api(plane),
            expiry=10.0,
            configuration=load_directory(webhook.config),
        ) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    """Run `serve` without a controller."""
    with queueing_webhook(plane) as webhook:
        yield webhook


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Running]:
    with queueing(plane) as running:
        yield running


@pytest.fixture
def line(running: Running, plane: ControlPlane) -> Line:
    assert not running.why_unready()
    return Line(plane)


@pytest.fixture(scope="package")
def running_jobs(full_plane: ControlPlane) -> Iterator[Running]:
    with queueing(full_plane) as running:
        yield running


@pytest.fixture
def jobs(running_jobs: Running, full_plane: ControlPlane) -> Line:
    """Return a namespace where the controllers of Kubernetes run."""
    assert not running_jobs.why_unready()
    return Line(full_plane)
