"""What the quota says of a workload: the rule's own words, on facts that are stated in full."""

from fractions import Fraction

from msgspec.structs import replace

from policies.gpus.amount import edits_to_request_share
from policies.pods.field_paths import path_parts, with_edits
from policies.pods.workload import PodCount, Workload
from policies.quota.fit import TemplateDemand, demands_that_can_start, starting_demand
from policies.quota.ledger.quota_ledger import Holder
from policies.quota.ledger.team import Team, TeamState
from policies.rule import Mode, Phase
from policies.rules.gpu_quota import GPUQuotaOptions, check_workload
from tests.builders import JSON, RESOURCE_MAPPING, context, gpu_container, pod, view
from tests.cases import cases
from tests.policies.quota.fits import (
    A100,
    A100_NEVER,
    NEVER,
    RAISE,
    RAISE_A100,
    granted,
    pods,
    said,
    workload,
)


@cases(
    ("subject", "held", "want"),
    replicas_times_demand_against_what_is_free=(
        workload(pods(2, running=16), kind="batch/Job"),
        {"gpus": 8},
        f"spec.parallelism: set parallelism: 4; needs 32 GPUs, {NEVER}; 4 of 16 pods will start; or {RAISE}",
    ),
    the_class_that_limits_most_is_named=(
        workload(pods(2, on=A100, running=8), kind="apps/StatefulSet"),
        {"gpus": 4, "classes/nvidia-a100-80gb": 4},
        f"spec.replicas: set replicas: 2; needs 16 {A100_NEVER}; 2 of 8 pods will start; or {RAISE_A100}",
    ),
    of_two_that_limit_equally_the_class_is_named=(
        workload(pods(1, on=A100, running=17)),
        {"gpus": 8, "classes/nvidia-a100-80gb": 0},
        f"spec.replicas: set replicas: 8; needs 17 {A100_NEVER}; 8 of 17 pods will start; or {RAISE_A100}",
    ),
    the_jobs_of_a_cron_job=(
        workload(pods(1, running=20), kind="batch/CronJob"),
        {"gpus": 8},
        f"spec.jobTemplate.spec.parallelism: set parallelism: 8; needs 20 GPUs, {NEVER}; 8 of 20 pods will start; or {RAISE}",
    ),
    all_of_the_quota_fits=(workload(pods(1, on=A100, running=8), kind="apps/ReplicaSet"), {}, None),
    an_exceeded_quota_has_nothing_free=(
        workload(pods(1, running=1), kind="apps/ReplicaSet"),
        {"gpus": 17},
        "spec.template: needs 1 GPU; ml-training has 0 of 16 free: 0 of 1 pods will start",
    ),
    a_pod_larger_than_the_quota=(
        workload(pods(17, running=1)),
        {},
        f"spec.template: set nvidia.com/gpu: 16; a pod needs 17 GPUs, {NEVER}; or {RAISE}",
    ),
    also_before_the_quota_was_counted_and_whatever_the_number_of_nodes=(
        workload(pods(9, on=A100, running=None), kind="apps/DaemonSet"),
        None,
        f"spec.template: set nvidia.com/gpu: 8; a pod needs 9 {A100_NEVER}; or {RAISE_A100}",
    ),
    a_gang_larger_than_the_quota=(
        workload(
            pods(8, "spec.pytorchReplicaSpecs.Master.template", running=1, gang=1),
            pods(8, "spec.pytorchReplicaSpecs.Worker.template", running=3, gang=3),
            kind="kubeflow.org/PyTorchJob",
        ),
        {"gpus": 8},
        f"4 pods that must run together need 32 GPUs, {NEVER}; {RAISE}",
    ),
    templates_add_up_in_their_order=(
        workload(
            pods(8, "spec.pytorchReplicaSpecs.Master.template", running=1, gang=1),
            pods(4, "spec.pytorchReplicaSpecs.Worker.template", running=2, gang=2),
            kind="kubeflow.org/PyTorchJob",
        ),
        {"gpus": 4},
        "wait until others release 4 GPUs; needs 16 GPUs; ml-training has 12 of 16 free: 2 of 3 pods will start",
    ),
    an_elastic_workload_at_its_maximum=(
        workload(pods(1, running=2, maximum=40), kind="ray.io/RayCluster"),
        {"gpus": 6},
        f"spec.template: may grow to 40 pods and then needs 40 GPUs, {NEVER}; 10 of 40 pods will start; {RAISE}",
    ),
    one_that_starts_from_zero=(
        workload(pods(1, running=0, maximum=20), kind="serving.kserve.io/InferenceService"),
        {},
        f"spec.template: may grow to 20 pods and then needs 20 GPUs, {NEVER}; 16 of 20 pods will start; {RAISE}",
    ),
    only_a_template=(workload(pods(17, running=0)), {}, None),
    suspended_and_never_fits=(
        workload(pods(1, running=0, resumed=PodCount(17)), kind="batch/Job"),
        {"gpus": 12},
        f"spec.template: needs 17 GPUs, {NEVER}; 16 of 17 pods will start; {RAISE}",
    ),
    suspended_and_too_large_a_gang=(
        workload(
            pods(1, running=0, resumed=PodCount(17)), kind="jobset.x-k8s.io/JobSet", starts_together=True
        ),
        {},
        f"spec.template: needs 17 GPUs, {NEVER}; 16 of 17 pods will start; {RAISE}",
    ),
    what_is_free_when_it_is_resumed_is_not_known=(
        workload(pods(1, running=0, resumed=PodCount(8)), kind="batch/Job"),
        {"gpus": 16},
        None,
    ),
    what_is_free_is_not_known_yet=(workload(pods(1, running=20)), None, None),
    unknown_number=(workload(pods(1, running=None), kind="apps/DaemonSet"), {"gpus": 16}, None),
    no_pods=(workload(), {"gpus": 16}, None),
    sixteen_templates=(
        workload(
            *(pods(1, f"spec.tasks[{n}].template", running=1) for n in range(16)), kind="batch.volcano.sh/Job"
        ),
        {"gpus": 1},
        "wait until others release 1 GPU; needs 16 GPUs; ml-training has 15 of 16 free: 15 of 16 pods will start",
    ),
    sixteen_and_one_without_gpus=(
        workload(
            *(pods(1, f"spec.tasks[{n}].template", running=1) for n in range(16)),
            pods(0, "spec.tasks[16].template", running=1),
            kind="batch.volcano.sh/Job",
        ),
        {"gpus": 1},
        "wait until others release 1 GPU; needs 16 GPUs; ml-training has 15 of 16 free: 15 of 16 pods will start",
    ),
    more_templates_than_are_counted=(
        workload(
            *(pods(17, f"spec.tasks[{n}].template", running=1) for n in range(17)),
            kind="batch.volcano.sh/Job",
        ),
        {},
        None,
    ),
    what_a_controller_makes=(
        workload(
            pods(1, running=20),
            metadata={"ownerReferences": [{"kind": "Owner", "name": "o", "controller": True}]},
        ),
        {},
        None,
    ),
)
def test_will_it_fit(subject: Workload, held: dict[str, int] | None, want: str | None) -> None:
    assert said(subject, granted(held)) == ([f"{want}"] if want else [])


@cases(
    ("spec", "replicas", "held", "stuck"),
    {
        "one-replica-by-default": ({}, 1, 7, True),
        "25-percent-of-3-is-none-unavailable": ({}, 3, 5, True),
        "25-percent-of-4-is-one-unavailable": ({}, 4, 4, False),
        "room-for-one-more": ({}, 3, 4, False),
        "recreate": ({"type": "Recreate"}, 3, 5, False),
        "one-may-be-unavailable": ({"rollingUpdate": {"maxUnavailable": 1}}, 3, 5, False),
        "none-may-be-unavailable": ({"rollingUpdate": {"maxUnavailable": 0}}, 8, 0, True),
        "10-percent-of-8-rounds-down": ({"rollingUpdate": {"maxUnavailable": "10%"}}, 8, 0, True),
        "both-zero-means-one-unavailable": ({"rollingUpdate": {"maxSurge": 0}}, 3, 5, False),
        "unreadable-is-the-api-servers-to-denied": ({"rollingUpdate": {"maxSurge": "many"}}, 3, 5, False),
    },
)
def test_a_rolling_update_that_cannot_begin(spec: JSON, replicas: int, held: int, stuck: bool) -> None:
    subject = workload(
        pods(1, on=A100, running=replicas),
        spec={"replicas": replicas, "strategy": {"type": "RollingUpdate"} | spec},
    )

    found = said(subject, granted({"classes/nvidia-a100-80gb": held}))

    fewer = f", or replicas: {replicas - 1}" if replicas > 1 else ""
    want = (
        f"spec.strategy: set type: Recreate (without rollingUpdate), or rollingUpdate.maxUnavailable: 1{fewer}; an update "
        "needs 1 nvidia-a100-80gb for a pod beside the others, and will not finish: ml-training will have 0 of 8 free"
    )
    assert found == ([want] if stuck else [])


def test_each_choice_for_a_rolling_update_without_room_works() -> None:
    """The denial of its pod names the same ones."""
    ledger, options = granted({"gpus": 8}), GPUQuotaOptions(mode=Mode.ENFORCE)
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    spec = {"replicas": 2, "strategy": rolling}
    [finding] = check_workload(
        workload(pods(4, running=2), spec=spec), options, context(Phase.TEMPLATE, ledger=ledger)
    )

    assert len(finding.choices) == 3
    for edits in finding.choices:
        made: JSON = with_edits({"spec": spec}, [(path_parts(edit.path), edit.value) for edit in edits])
        replicas = made["spec"]["replicas"]
        assert said(workload(pods(4, running=replicas), spec=made["spec"]), ledger) == []
        # The API server rejects Recreate beside rollingUpdate.
        assert (
            made["spec"]["strategy"]["type"] != "Recreate" or "rollingUpdate" not in made["spec"]["strategy"]
        )


def test_a_stateful_set_stops_a_pod_before_it_starts_the_next() -> None:
    subject = workload(pods(1, on=A100, running=8), kind="apps/StatefulSet", spec={"replicas": 8})

    assert said(subject, granted({})) == []


@cases(
    ("subject", "want"),
    it_fits=(workload(pods(1, running=12), spec={"replicas": 12}, status={"replicas": 8}), None),
    what_its_own_pods_hold_is_free_for_it=(
        workload(pods(1, running=17), spec={"replicas": 17}, status={"replicas": 8}),
        f"spec.replicas: set replicas: 14; needs 17 GPUs, {NEVER}; 14 of 17 pods will start; or {RAISE}",
    ),
    a_cron_job_by_its_active_jobs=(
        workload(pods(1, running=5), kind="batch/CronJob", status={"active": [{"name": "chat-1"}]}),
        None,
    ),
    a_job_by_its_active_pods=(
        workload(pods(1, running=12), kind="batch/Job", status={"active": 3}),
        "spec.parallelism: set parallelism: 9; needs 12 GPUs; ml-training has 9 of 16 free: 9 of 12 pods will start",
    ),
    unknown_how_many_it_has=(workload(pods(1, running=16), kind="kubeflow.org/PyTorchJob"), None),
    more_than_the_quota_grants_whatever_it_has=(
        workload(pods(1, running=17), kind="kubeflow.org/PyTorchJob"),
        f"spec.template: needs 17 GPUs, {NEVER}; 16 of 17 pods will start; {RAISE}",
    ),
    a_pod_larger_than_the_quota_whatever_it_has=(
        workload(pods(17, running=1), kind="kubeflow.org/PyTorchJob"),
        f"spec.template: set nvidia.com/gpu: 16; a pod needs 17 GPUs, {NEVER}; or {RAISE}",
    ),
)
def test_a_workload_that_is_changed(subject: Workload, want: str | None) -> None:
    found = said(subject, granted({"gpus": 10}), is_update=True)

    assert found == ([f"{want}"] if want else [])


@cases(
    ("holders", "status", "want"),
    others_hold_it=(
        {"Job/eval": "12"},
        {},
        "spec.template: set nvidia.com/gpu: 2, or wait until others release 4 GPUs; needs 8 GPUs; ml-training has 4 of 16 free: "
        "1 of 2 pods will start",
    ),
    its_own_pods_hold_it=({"MPIJob/chat": "8", "Job/eval": "4"}, {}, None),
    objects_that_its_controller_made_hold_it=({"Job/chat-w-0": "8", "Job/eval": "4"}, {}, None),
    another_with_a_similar_name=(
        {"Job/chats": "12"},
        {},
        "spec.template: set nvidia.com/gpu: 2, or wait until others release 4 GPUs; needs 8 GPUs; ml-training has 4 of 16 free: "
        "1 of 2 pods will start",
    ),
    holders_that_are_not_all=({"Job/eval": "6"}, {}, None),
    it_has_ended=({"Job/eval": "12"}, {"conditions": [{"type": "Succeeded", "status": "True"}]}, None),
)
def test_pods_of_a_changed_workload_whose_status_does_not_count_them(
    holders: dict[str, str], status: JSON, want: str | None
) -> None:
    """Of some kinds, the API server sends only changes, after the pods were denied."""
    held = tuple(Holder(name, amount) for name, amount in holders.items())
    ledger = replace(granted({"gpus": 12}), holders={"gpus": held})
    subject = workload(pods(4, running=2), kind="kubeflow.org/MPIJob", status=status)

    assert said(subject, ledger, is_update=True) == ([want] if want else [])


def test_a_pod_that_names_its_node_may_run_on_any_class() -> None:
    named = {"kubernetes.io/hostname": "node-1"}

    assert said(workload(pods(9, on=named, running=1), kind="batch/Job"), granted({})) == []
    [reported] = said(workload(pods(17, on=named, running=1), kind="batch/Job"), granted({}))
    assert "a pod needs 17 GPUs, which can never fit" in reported


def test_the_scarcest_of_what_a_pod_exceeds_is_named() -> None:
    on = {"accelerator": "nvidia-a100-80gb"}
    ledger = granted({}, **{"classes/nvidia-a100": 8, "classes/nvidia-a100-80gb": 4})

    [reported] = said(workload(pods(16, on=on, running=1), kind="batch/Job"), ledger)

    assert reported == (
        "spec.template: set nvidia.com/gpu: 4; a pod needs 16 nvidia-a100-80gb, which can never fit: the GPUQuota of ml-training "
        "grants 4 in all; or ask the platform team to raise spec.hard.classes[nvidia-a100-80gb]"
    )


def test_a_pod_that_pins_a_class_beside_its_node_runs_on_that_class() -> None:
    on = {"kubernetes.io/hostname": "node-1", "accelerator": "nvidia-a100-80gb"}

    [reported] = said(workload(pods(9, on=on, running=1), kind="batch/Job"), granted({}))

    assert reported == (
        "spec.template: set nvidia.com/gpu: 8; a pod needs 9 nvidia-a100-80gb, which can never fit: the GPUQuota of ml-training "
        "grants 8 in all; or ask the platform team to raise spec.hard.classes[nvidia-a100-80gb]"
    )


@cases(
    ("gpus", "want"),
    all_fit=(12, ["master", "worker", "alone"]),
    the_gang_is_too_large=(11, ["alone"]),
    as_large_as_the_pod=(9, ["alone"]),
    smaller_than_the_pod=(8, []),
    one_pod_of_the_gang_is_too_large=(7, []),
)
def test_pods_that_can_start_on_an_empty_quota(gpus: int, want: list[str]) -> None:
    requested = (
        TemplateDemand("master", {"gpus": Fraction(8)}, PodCount(gang=1)),
        TemplateDemand("worker", {"gpus": Fraction(2)}, PodCount(gang=2)),
        TemplateDemand("alone", {"gpus": Fraction(9)}, PodCount()),
    )
    assert [each.path for each in demands_that_can_start(requested, {"gpus": Fraction(gpus)})] == want


@cases(("free", "want"), all_start=(11, 11), half_of_the_gang=(5, 5), none_of_the_gang=(3, 1))
def test_of_a_gang_all_pods_start_or_none(free: int, want: int) -> None:
    requested = (
        TemplateDemand("gang", {"gpus": Fraction(2)}, PodCount(running=4, gang=2)),
        TemplateDemand("rest", {"gpus": Fraction(1)}, PodCount(running=3)),
        TemplateDemand("unknown", {"gpus": Fraction(1)}, PodCount()),
    )
    assert starting_demand(requested, {"gpus": Fraction(free)}) == {"gpus": want}


@cases(
    ("amounts", "part", "want"),
    a_half_of_each=((4, 8), Fraction(1, 2), [2, 4]),
    one_that_would_become_zero_is_one_and_the_largest_less=((1, 8), Fraction(8, 9), [1, 7]),
    too_little_for_each=((1, 1), Fraction(1, 2), []),
    nothing=((), Fraction(1, 2), []),
)
def test_a_part_of_what_containers_request(amounts: tuple[int, ...], part: Fraction, want: list[int]) -> None:
    asking = pod(*(gpu_container(str(amount)) for amount in amounts))

    edits = edits_to_request_share(view(asking), RESOURCE_MAPPING, part)

    assert [edit.value for edit in edits] == want


@cases(
    ("slices", "part", "want"),
    a_half_of_each=(4, Fraction(1, 2), [4, 2]),
    a_slice_is_no_less_than_one_and_weighs_less_than_a_card=(1, Fraction(1, 2), []),
)
def test_a_part_of_cards_and_slices(slices: int, part: Fraction, want: list[int]) -> None:
    of_slices = gpu_container(str(slices), resource="nvidia.com/mig-1g.10gb", name="slices")

    edits = edits_to_request_share(view(pod(gpu_container("8"), of_slices)), RESOURCE_MAPPING, part)

    assert [edit.value for edit in edits] == want


def test_smaller_pods_fit_the_team_as_well() -> None:
    """The quota has 2 of 8 free, and the team 1: two pods of one GPU each would not start either."""
    alone = granted({"gpus": 6}, gpus=8)
    team = Team(name="t", uid="t", generation=1, hard={"gpus": Fraction(8)})
    state = TeamState(
        team=team, taken_by_others={"gpus": Fraction(1)}, guaranteed_to_others={"gpus": Fraction(0)}, taken={}
    )
    written = workload(pods(4, running=2), kind="apps/ReplicaSet")

    [of_quota], [of_both] = said(written, alone), said(written, replace(alone, team_state=state))

    lacks = "needs 8 GPUs; ml-training has 2 of 8 free: 0 of 2 pods will start"
    assert of_quota == f"spec.template: set nvidia.com/gpu: 1, or wait until others release 6 GPUs; {lacks}"
    assert of_both == f"spec.template: wait until others release 7 GPUs; {lacks}"


def test_what_can_never_fit_is_said_before_what_the_team_lacks_now() -> None:
    team = Team(name="t", uid="t", generation=1, hard={"gpus": Fraction(64)})
    state = TeamState(
        team=team,
        taken_by_others={"gpus": Fraction(62)},
        guaranteed_to_others={"gpus": Fraction(0)},
        taken={},
    )
    ledger = replace(granted({}), team_state=state)

    [sentence] = said(workload(pods(8, running=3), kind="batch/Job"), ledger)

    assert sentence == (
        f"spec.parallelism: set parallelism: 2 or less, and wait until that much is free; needs 24 GPUs, {NEVER}; "
        f"0 of 3 pods will start; or {RAISE}"
    )
