"""`serve` and a controller under the names of an installation, with a policy by which pods wait in line."""

from collections.abc import Iterator

import pytest

from tests.cluster.controllers import Running, published_catalogues
from tests.cluster.waiting.line import POLICY, Line, let_account_do_all
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import INSTALLATION
from tests.controlplane.webhook import serving
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import CONTROLLER
from webhook.configuration.loader import load_directory


@pytest.fixture(scope="package")
def running(quotas: ControlPlane) -> Iterator[Running]:
    let_account_do_all(quotas)
    api = ApiClient(load_access(str(quotas.account_kubeconfig(INSTALLATION, CONTROLLER))))
    with (
        published_catalogues(quotas),
        serving(quotas, POLICY, arguments=("--kubeconfig", quotas.kubeconfig())) as webhook,
        Running(
            quotas, lease=CONTROLLER, api=api, expiry=10.0, configuration=load_directory(webhook.config)
        ) as running,
    ):
        yield running


@pytest.fixture
def line(running: Running, quotas: ControlPlane) -> Line:
    assert not running.controller.unready()
    return Line(quotas)
