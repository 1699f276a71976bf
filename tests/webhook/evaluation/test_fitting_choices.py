"""Which choices of a warning are offered as the quota is used now: equal pods share a decision, and each meets another usage."""

from datetime import UTC, datetime
from fractions import Fraction

from msgspec.structs import replace

from policies.finding import TOO_LARGE, Edit, Finding, Severity, Wait, separate_choices
from policies.pods.pod import Pod
from policies.quota.amounts import GPUS
from policies.quota.ledger.quota_ledger import Holder, Revisions
from policies.rule import Mode, Phase
from tests.builders import JSON, gpu_container, pod, quota_ledger, view
from tests.cases import cases
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_objects
from webhook.evaluation.decision import Decision
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Creation, Evaluator
from webhook.evaluation.fitting_choices import MAX_TRIED, with_choices_that_fit
from webhook.quota.enforcer import ReadOnlyQuota

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CLASS, PARAMS = "gpu-admission.dev/gpu-class", "gpu-admission.dev/model-params"
A100: JSON = {"nodeSelector": {"accelerator": "nvidia-a100-80gb"}}
CACHE = DecisionCache(
    load_objects(
        [
            Document(
                "GPUPolicy", "cluster-default", {"rules": {"gpu-class": {"allowed": ["nvidia-a100-80gb"]}}}
            )
        ]
    )
)


def warned(document: JSON, used: int, *, is_stored: bool = False) -> list[Finding]:
    """Return the warnings with advice on a pod where others use so many of 4 GPUs."""
    amounts = {GPUS: Fraction(used)}
    holders = {GPUS: (Holder("Job/other", str(used)),)}
    ledger = quota_ledger(
        hard={GPUS: Fraction(4)}, used=amounts, holders=holders, revisions=Revisions(pods=1)
    )
    quota = ReadOnlyQuota(ledger, CACHE.configuration)
    queues = (lambda _: None) if is_stored else None
    by = Evaluator(cache=CACHE, now=NOW, quota_of=lambda _: quota, queue_outcome=queues)
    created = view(document)
    creation = Creation(Phase.VALIDATE, by.policy("team"))
    decision = by.evaluate(creation, created, fingerprint=CACHE.fingerprints.of(created))
    return [each.finding for each in decision.violations if each.finding.choices]


def sentences(document: JSON, used: int, *, is_stored: bool = False) -> list[str]:
    return [each.sentence() for each in warned(document, used, is_stored=is_stored)]


SPREAD = pod(gpu_container("1", command=["torchrun", "--nproc_per_node=4"]), **A100)
PROCESSES = 'spec.containers[0].command[1] (container "main") = "--nproc_per_node 4": '
TOO_MANY = "should be at most 1, the GPUs of the container [parallelism]"
MODEL = pod(gpu_container("2"), annotations={PARAMS: "70b"}, **A100)
FITS_BADLY = (
    "should fit on nvidia-a100-80gb (80.0 GiB usable): 70b bf16 serving needs 195.6 GiB over 2 GPUs = 97.8 GiB each by rule of "
    "thumb; gpu-admission.dev/model-family or gpu-admission.dev/model-layers states it exactly [gpu-class]"
)
NAMED = f'metadata.annotations[{PARAMS}] = "70b": '


@cases(
    ("document", "used", "want"),
    room_for_each_choice=(SPREAD, 0, [f"{PROCESSES}set 1 or request 4 GPUs; {TOO_MANY}"]),
    room_for_one_of_two=(SPREAD, 1, [f"{PROCESSES}set command[1]: --nproc_per_node=1; {TOO_MANY}"]),
    room_for_the_only_one=(MODEL, 0, [f"{NAMED}request 4 GPUs of 80 GiB; {FITS_BADLY}"]),
    no_room_for_the_only_one=(
        MODEL,
        1,
        [f"{NAMED}set nvidia.com/gpu: 4, and wait until that much is free; {FITS_BADLY}"],
    ),
    no_room_for_the_pod_itself=(MODEL, 3, [f"{NAMED}request 4 GPUs of 80 GiB; {FITS_BADLY}"]),
)
def test_choices_of_a_warning_that_the_quota_has_room_for(document: JSON, used: int, want: list[str]) -> None:
    assert sentences(document, used) == want


OWNER: JSON = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
OF_A_JOB: JSON = {**SPREAD, "metadata": {**SPREAD["metadata"], "ownerReferences": [OWNER]}}


@cases(
    ("document", "is_stored", "advice"),
    of_an_author=(SPREAD, True, "set command[1]: --nproc_per_node=1"),
    of_a_controller_which_reads_no_answer=(OF_A_JOB, True, "set 1 or request 4 GPUs"),
    of_a_controller_where_people_read_it=(OF_A_JOB, False, "set command[1]: --nproc_per_node=1"),
)
def test_whose_choices_are_fitted(document: JSON, is_stored: bool, advice: str) -> None:
    assert sentences(document, 3, is_stored=is_stored) == [f"{PROCESSES}{advice}; {TOO_MANY}"]


def test_what_is_awaited_beside_the_only_choice() -> None:
    (found,) = warned(MODEL, used=1)

    assert found.awaits == Wait(beside_choice=True, amounts=((GPUS, "1"),))


def test_each_of_equal_pods_meets_the_usage_of_its_time() -> None:
    there_is_room, there_is_none = (
        f"{PROCESSES}{advice}; {TOO_MANY}"
        for advice in ("set 1 or request 4 GPUs", "set command[1]: --nproc_per_node=1")
    )

    assert [sentences(SPREAD, used) for used in (0, 3, 0)] == [
        [there_is_room],
        [there_is_none],
        [there_is_room],
    ]


def test_a_pod_with_too_many_resources_for_trials_keeps_its_choices() -> None:
    many = {f"example.com/r{number}": "1" for number in range(200)}
    finding = Finding(
        reason=TOO_LARGE,
        message="must have another color",
        severity=Severity.WARNING,
        choices=separate_choices(Edit("spec.nodeSelector[color]", "red")),
    )
    decision = Decision.of_findings(
        CACHE.configuration.policies.for_namespace("team"), [finding], Mode.ENFORCE
    )
    long = view(pod({"name": "main", "resources": {"limits": many}}))

    assert with_choices_that_fit(decision, long, lambda _: ()) == decision


def test_choices_that_cannot_be_tried_are_not_offered() -> None:
    choices = separate_choices(
        *(Edit("spec.nodeSelector[color]", str(number)) for number in range(MAX_TRIED + 1))
    )
    finding = Finding(
        reason=TOO_LARGE, message="must have another color", severity=Severity.WARNING, choices=choices
    )
    decision = Decision.of_findings(
        CACHE.configuration.policies.for_namespace("team"), [finding], Mode.ENFORCE
    )

    (left,) = with_choices_that_fit(decision, Pod(), lambda _: ()).violations

    assert left.finding == replace(finding, choices=choices[:MAX_TRIED])
