"""What a misspelt name of a GPU resource seems to mean."""

from tests.cases import cases
from webhook.configuration.loader import load_directory

BUILT_IN = load_directory(None).resource_mapping


@cases(
    ("name", "meant"),
    plural=("nvidia.com/gpus", "nvidia.com/gpu"),
    capitals=("nvidia.com/GPU", "nvidia.com/gpu"),
    two_letters_swapped=("nvidia.com/gup", "nvidia.com/gpu"),
    a_letter_is_missing=("nvidia.com/gp", "nvidia.com/gpu"),
    slip_in_the_domain=("nvida.com/gpu", "nvidia.com/gpu"),
    half_a_domain=("nvidia/gpu", "nvidia.com/gpu"),
    key_of_a_limit=("limits.nvidia.com/gpu", "nvidia.com/gpu"),
    name_before_device_plugins=("alpha.kubernetes.io/nvidia-gpu", "nvidia.com/gpu"),
    slice_without_a_dash=("nvidia.com/mig1g.5gb", "nvidia.com/mig-1g.5gb"),
    amd=("amd.com/gpus", "amd.com/gpu"),
    tpu=("google.com/tpus", "google.com/tpu"),
    neuroncores=("aws.amazon.com/neuroncores", "aws.amazon.com/neuroncore"),
    capitals_and_no_domain=("GPUs", "nvidia.com/gpu"),
    vendor_without_domain=("amd-gpu", "amd.com/gpu"),
    right=("nvidia.com/gpu", None),
    another_first_letter=("nvidia.com/pgpu", None),
    a_digit_more=("nvidia.com/gpu2", None),
    two_letters_more=("nvidia.com/gpuxy", None),
    another_domain=("example.com/gpu", None),
    a_network_card=("nvidia.com/hostdev", None),
    a_device_class=("deviceclass.resource.kubernetes.io/gpu", None),
)
def test_meant(name: str, meant: str | None) -> None:
    assert BUILT_IN.misspelt(name) == meant
