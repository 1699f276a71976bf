"""What hostile bodies are made of: values that parsers, rules and people stumble over."""

# ruff: noqa: RUF001, S108  # what looks like another character is meant to; /dev/shm is a mount
# fmt: off
from typing import Any

from policies.pods import annotations

NUMBERS = [
    "0", "-1", "1e3", "0.5", "1e308", "1e400", "-0", "9223372036854775808", "-9223372036854775809", "9" * 400,
    "1" + "0" * 4000,
]
QUANTITIES = [
    "", " ", "0", "1", "2", "-1", "0.5", "1500m", "9", "1e19", "1e400", "1e999999999", "1e-999999999",
    "1e4294967296", "NaN", "Infinity", "0x10", "1_0", "١", "½", "1 Gi", "1Ki", "16Ei", "+", ".", "1" * 300,
    "0." + "0" * 300 + "1", "\x00", "1\n", "1", "1", "2", "2", "1000m", "500m",
]
TEXTS = [
    "", " ", "\x00", "\n", "a\r\nb", "\x1b[31m", "\u202e", "\u2028", "\ud7ff\ue000", "\U0010ffff", "é" * 300,
    "/", "~", "~1", "..", "../../etc/passwd", "a" * 300, "a" * 70_000, "%s%n{0}", "${HOME}", "`id`", '"', "\\",
    "'; rm -rf /; '", "-", "--", "[]", "null", "*", "nvidia.com/gpu", "spec",
]
URIS = [
    "s3://", "s3://b", "s3://b/k", "s3://user:secret@b/k?x=1#y", "gs://b/../..", "hf://o/m", "hf://o/m@r",
    "hf://", "hf://o/m/x/y", "hf://o/m@" + "r" * 300, "https://", "https://h/m",
    "https://u:p@h:99999999/m?token=x", "https://[::1", "https://[::1]/m", "https://h:port/m",
    "https://h\x00/m", "https://h/\n", "http://169.254.169.254/latest", "file:///etc/passwd", "ftp://h/m",
    "pvc://c/p", "pvc://", "S3://B/K", "//h/m", "://", "https://ｈ/m", "https://xn--/m", "s3://b/%zz",
]
VALUES = [
    "0.5", "1.5", "-1", "0", "half", "2000", "2Gi", "7B", "70e9", "1e999", "nan", "inf", "bf16", "int4",
    "training", "serving", "90", "86401", "9" * 30, "nvidia-a100-80gb", "nvidia-a100", "nvidia-a1000",
    "amd-mi300x", "١٢", "1_000", "/models", "relative", "/", "/dev/shm", "/etc/../..", "models", "Models!",
]
RESOURCES = [
    "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-",
    "nvidia.com/mig-9g.9gb.shared", "nvidia.com/gpumem", "amd.com/gpu", "nvidia.com/" + "g" * 70_000,
    "gpu.intel.com/i915", "deviceclass.resource.kubernetes.io/x", "requests.nvidia.com/gpu", "/",
    "nvidia.com/gpu/", "google.com/tpu", "cpu",
]
VARIABLES = ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "", "A=B", "\x00", "HF_TOKEN", "é"]
ANNOTATIONS = [
    *(value for name, value in vars(annotations).items() if name.startswith(("GPU_", "MODEL_", "INJECTED"))),
    "gpu-fraction", "gpu-memory", "kubernetes.io/config.mirror", "gpu-admission.dev/",
    "gpu-admission.dev/unknown", "a/b/c", "~0~1",
]
LABELS = ["accelerator", "nvidia.com/gpu.product", "", "~1", "a" * 300]
TYPES: list[Any] = [
    None, True, False, 0, -1, 1.5, "", "x", [], {}, [None], [[]], [{}], {"": None}, {"name": 7}, ["x", 1, {}],
]
LITERALS = [
    '"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"a\\u000ab"', "1e400", "-1e400", "0e99999999999999999999",
]
"""JSON by its grammar."""
BROKEN = [
    b"{", b"}", b'"', b",", b"\x00", b"\\", b"null", b"01", b"+1", b"NaN", b"'x'", b'"\t"', b"{,}", b"[1,]",
    b"[" * 5000,
    b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80",
]
"""No JSON, or not where it is put."""
