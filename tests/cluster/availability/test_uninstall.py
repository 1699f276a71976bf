"""Going away for good, in the order of docs/operations.md, while GPU pods are created."""

from tests.cluster.availability.creators import Creators
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook, uninstall


def test_uninstalled_in_order_fails_no_creation(plane: ControlPlane) -> None:
    with (
        Webhook(plane, host=46, arguments=("--drain-seconds", "2")) as webhook,
        Creators(plane, "uninstalling", 4) as creators,
    ):
        webhook.register()
        creators.wait_for(20)
        called = webhook.calls()["validate"]
        uninstall(plane)
        webhook.stop()
        creators.wait_for(20)
    assert called > 0
    assert creators.failed == []
