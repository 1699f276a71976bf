import pytest

from policies.quota.amounts import Hard
from policies.quota.demand import UnclassifiedPods
from policies.quota.spec import QuotaSpec, resource_quota_findings, unheld_classes
from webhook.configuration.loader import load_directory

RESOURCE_MAPPING = load_directory(None).resource_mapping
WHY = "has no effect: a ResourceQuota counts only requests of extended resources"


@pytest.mark.parametrize(
    ("hard", "want"),
    [
        pytest.param(["requests.nvidia.com/gpu", "cpu", "pods"], [], id="what-is-enforced"),
        pytest.param(
            ["nvidia.com/gpu"],
            [f"spec.hard[nvidia.com/gpu]: set requests.nvidia.com/gpu; {WHY} [resource-quota]"],
            id="bare-name",
        ),
        pytest.param(
            ["limits.nvidia.com/gpu", "requests.nvidia.com/gpu"],
            [
                (
                    f"spec.hard[limits.nvidia.com/gpu]: remove it, requests.nvidia.com/gpu is set as well; {WHY} "
                    "[resource-quota]"
                )
            ],
            id="limits-beside-requests",
        ),
        pytest.param(
            ["nvidia.com/mig-1g.10gb"],
            [
                (
                    f"spec.hard[nvidia.com/mig-1g.10gb]: set requests.nvidia.com/mig-1g.10gb; {WHY} "
                    "[resource-quota]"
                )
            ],
            id="mig-slice",
        ),
        pytest.param(["example.com/dongle", "limits.cpu", "count/pods"], [], id="no-gpu"),
        pytest.param(["gpu.nvidia.com.deviceclass.resource.k8s.io/devices"], [], id="dra-devices"),
    ],
)
def test_keys_that_limit_nothing(hard: list[str], want: list[str]) -> None:
    assert [finding.sentence() for finding in resource_quota_findings(hard, RESOURCE_MAPPING)] == want


@pytest.mark.parametrize(
    ("classes", "stated", "want", "is_warned_about"),
    [
        pytest.param(
            {"nvidia-t4": "1"},
            None,
            UnclassifiedPods.MOST_EXPENSIVE,
            False,
            id="classes-are-held-unless-it-says-otherwise",
        ),
        pytest.param(
            {}, None, UnclassifiedPods.TOTAL_ONLY, False, id="without-classes-nothing-is-charged-by-class"
        ),
        pytest.param(
            {"nvidia-t4": "1"},
            UnclassifiedPods.TOTAL_ONLY,
            UnclassifiedPods.TOTAL_ONLY,
            True,
            id="it-says-otherwise",
        ),
        pytest.param({"nvidia-t4": "1"}, UnclassifiedPods.DENY, UnclassifiedPods.DENY, False, id="deny"),
        pytest.param(
            {}, UnclassifiedPods.TOTAL_ONLY, UnclassifiedPods.TOTAL_ONLY, False, id="total-only-of-a-total"
        ),
    ],
)
def test_unpinned(
    classes: dict[str, str], stated: UnclassifiedPods | None, want: UnclassifiedPods, is_warned_about: bool
) -> None:
    spec = QuotaSpec(hard=Hard(gpus="8", classes=classes), stated_unclassified_pods=stated)

    assert spec.unclassified_pods is want
    assert bool(unheld_classes(spec)) is is_warned_about
