"""What the registry says of each rule in one line."""

from policies.registry import RULES

SUMMARIES = {
    "cuda-version": "pods run where the driver has the CUDA version that they need",
    "disruption": "pods that end by themselves are not moved before, and servers have a PodDisruptionBudget",
    "gpu-class": "GPU pods run on the class they ask for, need, or get by default, and on none they may not use",
    "gpu-isolation": "containers that ask for no GPU see none",
    "gpu-quota": "a namespace holds no more GPUs than its GPUQuota and its team grant",
    "gpu-requests": "GPU requests are whole, equal their limits, and can be met",
    "gpu-toleration": "GPU pods tolerate the taints of GPU nodes",
    "host-resources": "GPU pods request the CPU and memory that belong to their GPUs, and no more",
    "ineffective-fields": "resources, annotations and fields are written where something reads them",
    "max-runtime": "pods that run to completion end within a known time",
    "model-warming": "models are fetched, once, before their servers start",
    "parallelism": "as many processes are started as GPUs are requested",
    "readiness-delay": "traffic and probes wait until the model is loaded",
    "shared-memory": "pods on several GPUs get a /dev/shm that is large enough",
    "spot": "GPU pods that can be interrupted run on the spot pool",
}


def test_what_each_rule_is_for() -> None:
    assert {rule.id: rule.summary for rule in RULES} == SUMMARIES
