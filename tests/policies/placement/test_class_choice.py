"""What decides on the classes of a pod: its annotation, else the default of the policy if the pod chooses nothing itself."""

from policies.placement.class_choice import Choice, ClassSelection, choose
from policies.placement.label_keys import LabelKeys
from policies.pods.annotations import GPU_CLASS
from tests.builders import CLASSES, JSON, RESOURCE_MAPPING, gpu_container, pod, view
from tests.cases import cases

CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}
PRODUCT = {"nodeSelector": {"example.com/product": "T4"}}


def annotated(name: str) -> JSON:
    return {"annotations": {GPU_CLASS: name}}


@cases(
    ("tweaks", "default", "is_pinned", "want"),
    {
        "class": (annotated("nvidia-t4"), None, False, ("nvidia-t4", None)),
        "family": (
            annotated("nvidia-a100"),
            None,
            False,
            ("nvidia-a100-40gb nvidia-a100-80gb", "nvidia-a100"),
        ),
        "annotation-of-a-pinned-pod": (annotated("nvidia-t4"), "nvidia-a100", True, ("nvidia-t4", None)),
        "default": ({}, "nvidia-t4", False, ("nvidia-t4", None)),
        "no-default": ({}, None, False, None),
        "default-of-another-vendor": ({}, "amd-mi300x", False, None),
        "pinned": ({}, "nvidia-t4", True, None),
        "with-claims": (CLAIMS, "nvidia-t4", False, None),
        "with-a-choice-of-hardware": (PRODUCT, "nvidia-t4", False, None),
    },
)
def test_the_choice_of_a_pod(
    tweaks: JSON, default: str | None, is_pinned: bool, want: tuple[str, str | None] | None
) -> None:
    gpu = RESOURCE_MAPPING.resource("nvidia.com/gpu")
    selection = ClassSelection(
        pod=view(pod(gpu_container(), **tweaks)),
        catalogue=CLASSES,
        namespace="team",
        allowed=("*",),
        default=default,
        label_key="accelerator",
        resources=(gpu,) if gpu else (),
        hardware=LabelKeys(frozenset({"example.com/product"})),
    )

    chosen = choose(selection, None, is_pinned=is_pinned)

    assert chosen is None or isinstance(chosen, Choice)
    assert (chosen and (" ".join(sorted(chosen.names)), chosen.family)) == want
