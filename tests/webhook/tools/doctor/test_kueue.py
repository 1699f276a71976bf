"""Doctor on Kueue: what its flavors tolerate, and what its queues grant beside GPUQuotas."""

from pathlib import Path

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.doctor.objects import NVIDIA, node
from tests.webhook.tools.installed_clusters import assert_found

T4 = {"accelerator": "nvidia-t4"}
SPOT_TAINT = {"key": "spot", "effect": "NoSchedule"}
TEMPLATES = "Kueue compares templates with it, and only pods get the toleration"
ADD = "set spec.tolerations: [{key: nvidia.com/gpu, operator: Equal, value: present, effect: NoSchedule}]"
LACKS = f"flavor-without-toleration: ResourceFlavor/t4 must tolerate nvidia.com/gpu=present:NoSchedule: {TEMPLATES}"


@cases(
    ("spec", "want"),
    without_topology_and_taints=({"nodeLabels": T4}, []),
    with_a_topology=(
        {"nodeLabels": T4, "topologyName": "rack"},
        [f"{LACKS}\n{ADD}, in a new ResourceFlavor: one with topologyName is immutable"],
    ),
    with_the_taint=({"nodeLabels": T4, "nodeTaints": [NVIDIA]}, [f"{LACKS}\n{ADD}"]),
    with_a_taint_that_only_some_jobs_tolerate=({"nodeLabels": T4, "nodeTaints": [SPOT_TAINT]}, []),
    with_tolerations=(
        {
            "nodeLabels": T4,
            "topologyName": "rack",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
        [],
    ),
    of_other_nodes=({"nodeLabels": {"accelerator": "x"}, "topologyName": "rack"}, []),
)
def test_flavors_of_kueue(tmp_path: Path, spec: JSON, want: list[str]) -> None:
    """It judges the template of a Job, which lacks what we add to its pods."""
    for version in ("v1beta2", "v1beta1"):
        objects = {
            "/api/v1/nodes": [node("a", T4)],
            "/apis/kueue.x-k8s.io": {"versions": [{"version": version}]},
            f"/apis/kueue.x-k8s.io/{version}/resourceflavors": [{"metadata": {"name": "t4"}, "spec": spec}],
        }
        assert_found("kueue-flavors", objects, want, tmp_path)


API = "/apis/kueue.x-k8s.io/v1beta2"
OURS = "/apis/gpu-admission.dev/v1alpha1/gpuquotas"
LOCAL = {"metadata": {"name": "train", "namespace": "ml"}, "spec": {"clusterQueue": "gpus"}}
ABOVE = (
    "queue-above-quota: ClusterQueue/gpus admits 12 GPUs, and the GPUQuota of namespace ml grants 8: Kueue shows workloads as "
    "admitted whose pods are denied\n"
    "set hard.gpus of the GPUQuota to 12 or more, or waitForPodsReady in Kueue's configuration"
)

BORROWS = ABOVE.replace("12 GPUs,", "12 GPUs, 4 of them by borrowing,")


def flavor(name: str, **quotas: str) -> JSON:
    resources = [
        {"name": each.replace("__", "/").replace("_", "."), "nominalQuota": of} for each, of in quotas.items()
    ]
    return {"name": name, "resources": resources}


@cases(
    ("flavors", "hard", "want"),
    it_grants_more=(
        [flavor("h100", nvidia_com__gpu="8", cpu="1k"), flavor("l4", nvidia_com__gpu="4")],
        {"gpus": "8"},
        [ABOVE],
    ),
    it_grants_as_much=([flavor("h100", nvidia_com__gpu="8")], {"gpus": "8"}, []),
    the_quota_limits_classes_alone=(
        [flavor("h100", nvidia_com__gpu="8")],
        {"classes": {"nvidia-h100-80gb": "4"}},
        [],
    ),
    shares_are_not_cards=([flavor("l4", nvidia_com__gpu_shared="80")], {"gpus": "8"}, []),
)
def test_queues_beside_quotas(tmp_path: Path, flavors: list[JSON], hard: JSON, want: list[str]) -> None:
    objects = {
        "/apis/kueue.x-k8s.io": {"versions": [{"version": "v1beta2"}]},
        f"{API}/clusterqueues": [
            {"metadata": {"name": "gpus"}, "spec": {"resourceGroups": [{"flavors": flavors}]}}
        ],
        f"{API}/cohorts": [],
        f"{API}/localqueues": [LOCAL, {**LOCAL, "metadata": {"name": "train", "namespace": "without-quota"}}],
        OURS: [
            {
                "metadata": {"name": "default", "namespace": "ml", "uid": "q"},
                "spec": {"hard": hard},
            }
        ],
    }
    assert_found("kueue-quotas", objects, want, tmp_path)


def of_h100(nominal: int, **limits: int) -> JSON:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": nominal, **limits}
    return {"resourceGroups": [{"flavors": [{"name": "h100", "resources": [quota]}]}]}


def in_cohort(name: str, spec: JSON, cohort: str = "lab", field: str = "cohortName") -> JSON:
    return {"metadata": {"name": name}, "spec": {**spec, field: cohort}}


OWN = in_cohort("gpus", of_h100(8))


@cases(
    ("queues", "cohorts", "want"),
    what_another_queue_does_not_use=([OWN, in_cohort("other", of_h100(4))], [], [BORROWS]),
    under_v1beta1=(
        [in_cohort("gpus", of_h100(8), field="cohort"), in_cohort("other", of_h100(4), field="cohort")],
        [],
        [BORROWS],
    ),
    no_more_than_it_may_borrow=(
        [in_cohort("gpus", of_h100(8, borrowingLimit=0)), in_cohort("other", of_h100(4))],
        [],
        [],
    ),
    no_more_than_the_other_lends=([OWN, in_cohort("other", of_h100(9, lendingLimit=4))], [], [BORROWS]),
    what_the_cohort_itself_has=([OWN], [in_cohort("lab", of_h100(4), "")], [BORROWS]),
    what_a_cohort_above_has=(
        [OWN],
        [in_cohort("lab", {}, "house", "parentName"), in_cohort("house", of_h100(4), "")],
        [BORROWS],
    ),
    what_a_cohort_beside_lends=(
        [OWN, in_cohort("far", of_h100(9, lendingLimit=4), "hall")],
        [
            in_cohort("lab", {}, "house", "parentName"),
            in_cohort("hall", of_h100(0), "house", "parentName"),
        ],
        [BORROWS],
    ),
    of_another_cohort=([OWN, in_cohort("other", of_h100(4), "hall")], [], []),
    a_cycle=([OWN], [in_cohort("lab", {}, "lab", "parentName")], []),
)
def test_what_queues_borrow(tmp_path: Path, queues: list[JSON], cohorts: list[JSON], want: list[str]) -> None:
    objects = {
        "/apis/kueue.x-k8s.io": {"versions": [{"version": "v1beta2"}]},
        f"{API}/clusterqueues": queues,
        f"{API}/cohorts": cohorts,
        f"{API}/localqueues": [LOCAL],
        OURS: [
            {"metadata": {"name": "default", "namespace": "ml", "uid": "q"}, "spec": {"hard": {"gpus": "8"}}}
        ],
    }
    assert_found("kueue-quotas", objects, want, tmp_path)
