"""Many values of one label are said in few words; the whole list is in JSON."""

import pytest

from policies.placement.pinning import many_values, pinning
from policies.pods.patch import PodPatch
from policies.rule import Phase
from policies.rules.gpu_class import GPUClassOptions, mutate
from tests.builders import context, gpu_container, node_affinity, pod, view
from tests.cases import cases
from webhook.configuration.loader import load_directory

CLASSES = load_directory(None).classes
PRODUCT = "nvidia.com/gpu.product"
A100 = CLASSES.resolve("nvidia-a100")
PRODUCTS = tuple(
    dict.fromkeys(
        value for each in A100 for label in each.node_labels if label.key == PRODUCT for value in label.values
    )
)


@cases(
    ("key", "values", "names", "want"),
    a_few_are_listed=(PRODUCT, PRODUCTS[:4], ["nvidia-a100-40gb"], ""),
    of_a_class=(PRODUCT, PRODUCTS[:5], ["nvidia-a100-40gb"], "5 products of nvidia-a100-40gb"),
    of_a_family=(
        PRODUCT,
        PRODUCTS[:5],
        ["nvidia-a100-40gb", "nvidia-a100-80gb"],
        "5 products of nvidia-a100",
    ),
    of_families=(
        "gpu",
        PRODUCTS[:5],
        ["nvidia-a100-40gb", "nvidia-t4"],
        "5 values of nvidia-a100, nvidia-t4",
    ),
)
def test_words(key: str, values: tuple[str, ...], names: list[str], want: str) -> None:
    assert many_values(key, values, CLASSES.named(names)) == want


def test_what_pins_a_pod_to_a_family_by_its_products() -> None:
    pinned = pinning(
        view(pod(gpu_container(), affinity=node_affinity([(PRODUCT, "In", *PRODUCTS)]))), CLASSES
    )

    assert pinned
    assert pinned.because == (f"node affinity {PRODUCT} in ({len(PRODUCTS)} products of nvidia-a100)",)


@pytest.mark.parametrize("annotation", ["nvidia-a100"])
def test_an_injected_affinity_is_whole_for_programs_and_short_for_people(annotation: str) -> None:
    patch = PodPatch(view(pod(gpu_container(), annotations={"gpu-admission.dev/gpu-class": annotation})))
    assert not list(mutate(patch, GPUClassOptions(label_key=PRODUCT), context(Phase.MUTATE, classes=CLASSES)))

    (change,) = patch.changes
    assert change.what == f"node affinity {PRODUCT} In {','.join(PRODUCTS)}"
    assert change.brief == f"node affinity {PRODUCT} In {len(PRODUCTS)} products of nvidia-a100"
