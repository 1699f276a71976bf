from policies.quota.amounts import Hard
from policies.quota.demand import UnclassifiedPods
from policies.quota.spec import QuotaSpec, resource_quota_findings, unheld_classes
from tests.cases import cases
from webhook.configuration.loader import load_directory

TOTAL_ONLY, DENY, MOST_EXPENSIVE = UnclassifiedPods

RESOURCE_MAPPING = load_directory(None).resource_mapping
WHY = "has no effect: a ResourceQuota counts only requests of extended resources"


@cases(
    ("hard", "want"),
    {
        "what-is-enforced": (["requests.nvidia.com/gpu", "cpu", "pods"], []),
        "bare-name": (
            ["nvidia.com/gpu"],
            [f"spec.hard[nvidia.com/gpu]: set requests.nvidia.com/gpu; {WHY} [resource-quota]"],
        ),
        "limits-beside-requests": (
            ["limits.nvidia.com/gpu", "requests.nvidia.com/gpu"],
            [
                f"spec.hard[limits.nvidia.com/gpu]: remove it, requests.nvidia.com/gpu is set as well; {WHY} "
                "[resource-quota]"
            ],
        ),
        "mig-slice": (
            ["nvidia.com/mig-1g.10gb"],
            [
                f"spec.hard[nvidia.com/mig-1g.10gb]: set requests.nvidia.com/mig-1g.10gb; {WHY} "
                "[resource-quota]"
            ],
        ),
        "no-gpu": (["example.com/dongle", "limits.cpu", "count/pods"], []),
        "dra-devices": (["gpu.nvidia.com.deviceclass.resource.k8s.io/devices"], []),
    },
)
def test_keys_that_limit_nothing(hard: list[str], want: list[str]) -> None:
    assert [finding.sentence() for finding in resource_quota_findings(hard, RESOURCE_MAPPING)] == want


@cases(
    ("classes", "stated", "want", "is_warned_about"),
    {
        "classes-are-held-unless-it-says-otherwise": ({"nvidia-t4": "1"}, None, MOST_EXPENSIVE, False),
        "without-classes-nothing-is-counted-by-class": ({}, None, TOTAL_ONLY, False),
        "it-says-otherwise": ({"nvidia-t4": "1"}, TOTAL_ONLY, TOTAL_ONLY, True),
        "deny": ({"nvidia-t4": "1"}, DENY, DENY, False),
        "total-only-of-a-total": ({}, TOTAL_ONLY, TOTAL_ONLY, False),
    },
)
def test_unclassified(
    classes: dict[str, str], stated: UnclassifiedPods | None, want: UnclassifiedPods, is_warned_about: bool
) -> None:
    spec = QuotaSpec(hard=Hard(gpus="8", classes=classes), stated_unclassified_pods=stated)

    assert spec.unclassified_pods is want
    assert bool(unheld_classes(spec)) is is_warned_about
