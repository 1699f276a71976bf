"""What a misspelt name of a GPU resource seems to mean."""

from time import process_time

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
    slice_without_a_dot=("nvidia.com/mig-3g40gb", "nvidia.com/mig-3g.40gb"),
    slice_in_capitals=("nvidia.com/MIG-1g.5gb", "nvidia.com/mig-1g.5gb"),
    slice_of_gigabits=("nvidia.com/mig-3g.40g", "nvidia.com/mig-3g.40gb"),
    slice_with_media_and_without_a_dot=("nvidia.com/mig-1g10gb.me", "nvidia.com/mig-1g.10gb.me"),
    share_with_a_dash=("nvidia.com/gpu-shared", "nvidia.com/gpu.shared"),
    share_in_one_word=("nvidia.com/gpushared", "nvidia.com/gpu.shared"),
    amount_in_the_name=("nvidia.com/gpu=1", "nvidia.com/gpu"),
    amount_after_a_colon=("amd.com/gpu:8", "amd.com/gpu"),
    amount_and_no_domain=("gpu=1", "nvidia.com/gpu"),
    amd=("amd.com/gpus", "amd.com/gpu"),
    tpu=("google.com/tpus", "google.com/tpu"),
    neuroncores=("aws.amazon.com/neuroncores", "aws.amazon.com/neuroncore"),
    capitals_and_no_domain=("GPUs", "nvidia.com/gpu"),
    vendor_without_domain=("amd-gpu", "amd.com/gpu"),
    right=("nvidia.com/gpu", None),
    another_first_letter=("nvidia.com/pgpu", None),
    right_slice=("nvidia.com/mig-1g.10gb", None),
    a_digit_more=("nvidia.com/gpu2", None),
    two_letters_more=("nvidia.com/gpuxy", None),
    another_domain=("example.com/gpu", None),
    a_network_card=("nvidia.com/hostdev", None),
    a_device_class=("deviceclass.resource.kubernetes.io/gpu", None),
)
def test_meant(name: str, meant: str | None) -> None:
    assert BUILT_IN.suggested_name(name) == meant


def test_a_name_of_many_spaces_takes_no_time() -> None:
    """Each of them could begin an amount: with all tried, 20,000 take seconds."""
    began = process_time()

    assert BUILT_IN.suggested_name("nvidia.com/gpu" + " " * 20_000 + "x") is None
    assert process_time() - began < 0.5
