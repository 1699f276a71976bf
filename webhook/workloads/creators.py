"""Who creates pods: the users of controllers, and what a pod says of its controller."""

from policies.pods.pod import Pod

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

SERVICE_ACCOUNT = "system:serviceaccount:"
DAEMONSET_CONTROLLER = "system:serviceaccount:kube-system:daemon-set-controller"
CONTROLLER_MANAGER = "system:kube-controller-manager"
"""Who creates the pods of DaemonSets: the former, or the latter where controllers share one identity."""


def has_controller(pod: Pod, kind: str, api_version: str) -> bool:
    """Whether the controller of the pod is of this kind, with an API version that begins so."""
    owners = (pod.metadata and pod.metadata.owner_references) or ()
    return any(
        each.controller and each.kind == kind and each.api_version.startswith(api_version) for each in owners
    )
