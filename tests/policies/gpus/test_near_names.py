"""What a misspelt name of a GPU resource seems to mean."""

from tests.cases import cases
from webhook.configuration.loader import load_directory

BUILT_IN = load_directory(None).resource_mapping


@cases(
    ("name", "meant"),
    {
        "plural": ("nvidia.com/gpus", "nvidia.com/gpu"),
        "capitals": ("nvidia.com/GPU", "nvidia.com/gpu"),
        "two-letters-swapped": ("nvidia.com/gup", "nvidia.com/gpu"),
        "a-letter-is-missing": ("nvidia.com/gp", "nvidia.com/gpu"),
        "slip-in-the-domain": ("nvida.com/gpu", "nvidia.com/gpu"),
        "half-a-domain": ("nvidia/gpu", "nvidia.com/gpu"),
        "key-of-a-limit": ("limits.nvidia.com/gpu", "nvidia.com/gpu"),
        "name-before-device-plugins": ("alpha.kubernetes.io/nvidia-gpu", "nvidia.com/gpu"),
        "slice-without-a-dash": ("nvidia.com/mig1g.5gb", "nvidia.com/mig-1g.5gb"),
        "amd": ("amd.com/gpus", "amd.com/gpu"),
        "tpu": ("google.com/tpus", "google.com/tpu"),
        "neuroncores": ("aws.amazon.com/neuroncores", "aws.amazon.com/neuroncore"),
        "capitals-and-no-domain": ("GPUs", "nvidia.com/gpu"),
        "vendor-without-domain": ("amd-gpu", "amd.com/gpu"),
        "right": ("nvidia.com/gpu", None),
        "another-first-letter": ("nvidia.com/pgpu", None),
        "a-digit-more": ("nvidia.com/gpu2", None),
        "two-letters-more": ("nvidia.com/gpuxy", None),
        "another-domain": ("example.com/gpu", None),
        "a-network-card": ("nvidia.com/hostdev", None),
        "a-device-class": ("deviceclass.resource.kubernetes.io/gpu", None),
    },
)
def test_meant(name: str, meant: str | None) -> None:
    assert BUILT_IN.misspelt(name) == meant
