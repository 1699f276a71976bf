"""Measured peaks of pods."""

from fractions import Fraction

from policies.gpus.mapping_spec import NVIDIA_GPU
from webhook.configuration.loader import load_directory
from webhook.tools.rightsize.sizing import Peaks, Size

CLASSES = load_directory(None).classes

H100, A100, L4, T4 = "nvidia-h100-80gb", "nvidia-a100-80gb", "nvidia-l4", "nvidia-t4"

MIG = "nvidia.com/mig-"
ALL_SLICES = frozenset(f"{MIG}{each}" for each in ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"))


def whole(gpu_class: str, gpus: int = 1) -> Size:
    known = CLASSES.get(gpu_class)
    assert known is not None
    return Size(gpu_class=gpu_class, resource=NVIDIA_GPU, gpus=gpus, memory_gib=known.memory_gib)


def peaks(memory: str, use: str, of_pod: tuple[str, str] | None = None) -> Peaks:
    """Return peaks of one GPU, and of all GPUs of a pod, which are the same where there is one."""
    memory_of_pod, use_of_pod = of_pod or (memory, use)
    return Peaks(
        memory_gib=Fraction(memory),
        use=Fraction(use),
        memory_gib_of_pod=Fraction(memory_of_pod),
        use_of_pod=Fraction(use_of_pod),
    )
