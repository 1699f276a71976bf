"""What of a rule that is exported as CEL stays with the webhook, and why: it is printed with each export."""

from policies.registry import RULES

EXPORTED_WITHOUT = {
    "gpu-class": {
        "all but `allowed`": "it chooses by the classes and the nodes, which CEL cannot read",
        "pods that name a node": "CEL cannot look up its class",
        "pods that only use claims (DRA)": "CEL cannot look up their devices",
    },
    "gpu-isolation": {
        "accelerators that no GPUResourceMapping has": "the webhook warns of them; they keep what their image says",
        "GPUs of other schedulers": "the webhook warns that no quota counts them",
        "claims of other devices": "CEL cannot look up their devices, so each claim counts as a GPU",
        "pods and privileged containers on GPU nodes that request no GPU": "a warning denies nothing; `check` gives it",
        "pod templates of workloads": "their pods are checked when they are created",
    },
    "gpu-requests": {
        (
            "slices that no class has, more slices or cards than a node has, another vendor's resource "
            "than the class's"
        ): "what a class has depends on where the pod can land, which is computed over all GPUClasses",
        "the values of fraction annotations": "their scheduler rejects them itself; the pod gets no GPU by them",
        "warnings": "about time-sliced shares and variables set by hand: the webhook gives this advice",
        "amounts finer than thousandths": "CEL compares quantities exactly, the API server rounds them up to thousandths",
        "pod templates of workloads": "their pods are checked when they are created",
        "limits by class": "the largest holds for a pod that does not pin itself by labels of nodes",
        "completeLimits": "without the webhook the API server itself rejects such pods",
    },
    "gpu-toleration": {
        "tolerations for devices by DRA": "CEL cannot look up the DeviceClasses of a claim",
    },
    "max-runtime": {
        "pods that controllers of Kubernetes make": "their deadline may be that of their Job, which CEL cannot look up",
        "what it adds": (
            "a pod without a deadline is denied: the default may be that of its owner, and the webhook "
            "adds it"
        ),
        "annotation max-runtime": "the webhook reads it before, and sets the field",
        "pods that only use claims (DRA)": "CEL cannot look up their devices",
    },
}


def test_what_is_not_exported_is_said_with_the_reason() -> None:
    assert {rule.id: {**rule.exported_without} for rule in RULES if rule.exported_without} == EXPORTED_WITHOUT
