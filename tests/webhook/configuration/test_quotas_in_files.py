"""GPUQuotas in files: by namespace, and what is wrong with one, with its place."""

from pathlib import Path

from tests.cases import cases
from tests.webhook.configuration.written import HEAD, gpu_quota, problems_of, write
from webhook.configuration.loader import load_directory


def test_quotas_are_by_namespace(tmp_path: Path) -> None:
    spec = '{hard: {gpus: "16", classes: {nvidia-a100: "8"}}, unclassifiedPods: Deny}'
    other = gpu_quota('{hard: {gpus: "0"}}', "{name: default, namespace: other}")
    configuration = load_directory(write(tmp_path, quota=gpu_quota(spec) + "---\n" + other))

    assert sorted(configuration.quotas) == ["other", "team"]
    assert configuration.quotas["team"].amounts == {"gpus": 16, "classes/nvidia-a100": 8}
    assert configuration.quotas["team"].unclassified_pods.value == "Deny"
    assert configuration.quotas["other"].unclassified_pods.value == "TotalOnly"


QUOTA = "GPUQuota/default"


@cases(
    ("text", "want"),
    no_namespace=(gpu_quota("{hard: {}}", "{name: default}"), f"3: {QUOTA} metadata.namespace: Required value"),
    another_name=(gpu_quota("{hard: {}}", "{name: second, namespace: team}"),
        "3: GPUQuota/second metadata.name: must be default: a namespace has at most one GPUQuota"),
    no_namespace_could_be_called_that=(gpu_quota("{hard: {}}", "{name: default, namespace: Team}"),
        f"3: {QUOTA} metadata.namespace: must consist of at most 63 lower case letters, digits and -"),
    two_for_one_namespace=(gpu_quota("{hard: {}}") + "---\n" + gpu_quota("{hard: {}}"),
        f'8: {QUOTA} metadata.namespace: Duplicate value: "team", also in p.yaml:1'),
    decimal_number=(gpu_quota("{hard: {gpus: 0.5}}"),
        f"4: {QUOTA} spec.hard.gpus: must be a whole number or text; YAML reads 0.5 as a number: quote it"),
    negative_number=(gpu_quota("{hard: {classes: {nvidia-t4: -1}}}"),
        f'4: {QUOTA} spec.hard.classes.nvidia-t4: must be an amount such as 16, "0.5" or "2/7", not -1'),
    fewer_than_none=(gpu_quota("{hard: {}, queue: {maxWaiting: -1}}"),
        f"4: {QUOTA} spec.queue.maxWaiting: must be 0 or more"),
    unknown_order=(gpu_quota("{hard: {}, queue: {order: Random}}"),
        f'4: {QUOTA} spec.queue.order: Unsupported value: "Random": must be one of StrictFIFO, BestEffortFIFO'),
    no_gpus=(gpu_quota("{hard: {resources: {cpu: 8}}}"),
        f"4: {QUOTA} spec.hard.resources.cpu: must be a GPU resource: nothing else counts for a quota"),
    unknown_class=(gpu_quota('{hard: {classes: {nvidia-a10: "1", a100: "1"}}}'),
        f"4: {QUOTA} spec.hard.classes.a100: must be a GPU class or family; did you mean nvidia-a100?"),
    a_budget_of_nothing=(gpu_quota("{hard: {}, budget: {period: week}}"),
        f"4: {QUOTA} spec.budget: must have gpuHours, byClass or both"),
    a_budget_of_another_period=(gpu_quota("{hard: {}, budget: {gpuHours: 5, period: year}}"),
        f'4: {QUOTA} spec.budget.period: Unsupported value: "year": must be one of day, week, month'),
    a_budget_of_an_unknown_class=(gpu_quota("{hard: {}, budget: {byClass: {a100: 5}}}"),
        f"4: {QUOTA} spec.budget.byClass.a100: must be a GPU class or family; did you mean nvidia-a100?"),
    a_budget_that_never_warns=(gpu_quota("{hard: {}, budget: {gpuHours: 5, warnAt: 0}}"),
        f"4: {QUOTA} spec.budget.warnAt: must be more than 0 and at most 1, such as 0.8"),
    a_policy_has_no_namespace=(
        f"{HEAD}kind: GPUPolicy\nmetadata: {{name: default, namespace: team}}\nspec: {{}}\n",
        "3: GPUPolicy/default metadata.namespace: must be omitted: a GPUPolicy is cluster-scoped"),
)  # fmt: skip
def test_a_bad_quota_is_reported_with_its_place(tmp_path: Path, text: str, want: str) -> None:
    assert problems_of(write(tmp_path, p=text)) == [f"p.yaml:{want}"]
