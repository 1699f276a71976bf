"""A TrainJob with what its runtime says: the nodes, the processes on each, and their GPUs.

Source: kubeflow/trainer v2.3 pkg/runtime/runtime.go (`ExtractResourcePerNodeFromRuntime`), and `EnforceMLPolicy` in
pkg/runtime/framework/plugins of torch and mpi; the number of processes of `torch` is of v2.0 and v2.1.
"""

from typing import Any

from policies.pods.field_paths import path_parts, value_at, with_edit

TRAIN_JOB = ("trainer.kubeflow.org", "TrainJob")
_NODE, _ANCESTOR = "node", "trainer.kubeflow.org/trainjob-ancestor-step"
_JOBS, _CONTAINERS = "spec.template.spec.replicatedJobs", "template.spec.template.spec.containers"


def with_runtime(data: Any, runtime: Any) -> Any:
    """Return the TrainJob with the nodes, processes and resources of its runtime where it does not state its own."""
    policy, own = value_at(runtime, ("spec", "mlPolicy")) or {}, value_at(data, ("spec", "trainer")) or {}
    if not (isinstance(policy, dict) and isinstance(own, dict) and isinstance(data.get("spec"), dict)):
        return data
    # mpi, since v2.1: the default 1 means one process for each GPU, so it states no number.
    of_mpi = value_at(policy, ("mpi", "numProcPerNode"))
    stated = {
        "numNodes": policy.get("numNodes") or 1,
        "numProcPerNode": value_at(policy, ("torch", "numProcPerNode")) or (of_mpi if of_mpi != 1 else None),
        "resourcesPerNode": _resources(runtime),
    }
    trainer = {**{key: value for key, value in stated.items() if value is not None}, **own}
    if not policy.keys() & {"torch", "mpi"}:
        trainer.pop("numProcPerNode", None)  # of other frameworks, the runtime's own policy says it
    return with_edit(data, ("spec", "trainer"), trainer)


def _resources(runtime: Any) -> Any:
    """Return the resources of the first container of nodes that has any."""
    for job in _items(runtime, _JOBS):
        labels = value_at(job, ("template", "metadata", "labels"))
        if value_at(job, ("name",)) == _NODE or value_at(labels, (_ANCESTOR,)) == "trainer":
            for container in _items(job, _CONTAINERS):
                if value_at(container, ("name",)) == _NODE and container.get("resources"):
                    return container["resources"]
    return None


def _items(data: Any, path: str) -> list[Any]:
    names = value_at(data, path_parts(path))
    return names if isinstance(names, list) else []
