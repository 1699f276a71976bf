"""Which API servers let an autoscaler scale to zero, as the remedies of readiness-delay say."""

from tests.controlplane import ControlPlane, minor_version


def test_an_autoscaler_may_scale_to_zero_since_1_37(plane: ControlPlane) -> None:
    waiting = {"metric": {"name": "requests"}, "target": {"type": "Value", "value": "1"}}
    server = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    spec = {
        "scaleTargetRef": server,
        "minReplicas": 0,
        "maxReplicas": 2,
        "metrics": [{"type": "External", "external": waiting}],
    }
    path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
    status, answer = plane.client().post(
        path, {"metadata": {"name": "chat"}, "spec": spec}, {"dryRun": "All"}
    )

    assert status == (201 if minor_version() >= 37 else 422), answer
