"""parallelism: a warning with both numbers where processes and GPUs certainly do not agree, and silence elsewhere."""

from typing import Any

from policies.finding import Severity
from policies.rules.parallelism import RULE, check, check_workload
from tests.builders import JSON, container, context, gpu_container, pod, view, workload
from tests.cases import cases

OPTIONS = RULE.options()
VLLM = ["vllm", "serve", "Qwen/Qwen3-32B"]


def findings(document: JSON) -> list[str]:
    found = list(check(view(document), OPTIONS, context()))
    assert all(finding.severity is Severity.WARNING for finding in found)
    return [finding.sentence() for finding in found]


def advice(document: JSON) -> list[str]:
    return [finding.sentence() for finding in check_workload(workload(document), OPTIONS, context())]


def shell(script: str, gpus: int = 2) -> JSON:
    return pod(gpu_container(gpus, command=["sh", "-c"], args=[script]))


def more(processes: int, gpus: int, whose: str = "the container") -> str:
    return f"set {gpus} or request {processes} GPUs; should be at most {gpus}, the GPUs of {whose}"


def fewer(processes: int, gpus: int, whose: str = "the container") -> str:
    return f"set {gpus} or request {processes}; should be {gpus}, the GPUs of {whose}: the others stay idle"


@cases(
    ("document", "at", "want"),
    vllm_with_more=(
        pod(gpu_container(2, args=[*VLLM, "--tensor-parallel-size", "4"])),
        "args[3] --tensor-parallel-size 4",
        more(4, 2),
    ),
    vllm_with_fewer=(
        pod(gpu_container(8, args=[*VLLM, "--tensor-parallel-size=2"])),
        "args[3] --tensor-parallel-size 2",
        fewer(2, 8),
    ),
    short_flag=(pod(gpu_container(1, command=[*VLLM, "-tp", "2"])), "command[3] -tp 2", more(2, 1)),
    sglang=(shell("python3 -m sglang.launch_server \\\n  --tp 8", 4), "args[0] --tp 8", more(8, 4)),
    torchrun=(shell('torchrun --nproc_per_node="8" x', 4), "args[0] --nproc_per_node 8", more(8, 4)),
    torchrun_on_several_nodes_with_fewer=(
        shell("torchrun --nnodes 2 --nproc-per-node 1 train.py", 4),
        "args[0] --nproc-per-node 1",
        fewer(1, 4),
    ),
    torchrun_on_several_nodes_with_more=(
        shell("torchrun --nnodes 2 --nproc_per_node 8 train.py", 4),
        "args[0] --nproc_per_node 8",
        more(8, 4),
    ),
    accelerate=(
        shell("accelerate launch --num_processes 4 train.py"),
        "args[0] --num_processes 4",
        more(4, 2),
    ),
    accelerate_on_two_machines=(
        shell("accelerate launch --num_processes 8 --num_machines 2 train.py"),
        "args[0] --num_processes 8",
        more(8, 4, "2 machines"),
    ),
    the_sixteenth_flag=(shell("-tp 2\n" * 15 + "-tp 4"), "args[0] -tp 4", more(4, 2)),
    tgi_on_amd=(
        pod(gpu_container(1, resource="amd.com/gpu", args=["--num-shard", "2"])),
        "args[0] --num-shard 2",
        more(2, 1),
    ),
)
def test_processes_that_do_not_agree_with_the_gpus(document: JSON, at: str, want: str) -> None:
    where, _, value = at.partition(" ")
    assert findings(document) == [f'spec.containers[0].{where} (container "main") = "{value}": {want}']


@cases(
    "document",
    as_many=shell("vllm serve m --tensor-parallel-size 2"),
    no_flag=shell("vllm serve m"),
    a_seventeenth_flag=shell("-tp 2\n" * 16 + "-tp 4"),
    variable=shell("vllm serve m --tensor-parallel-size $GPUS"),
    no_machines=shell("accelerate launch --num_processes 2 --num_machines 0 train.py"),
    as_many_as_there_are=shell("torchrun --nproc_per_node=gpu train.py"),
    comment=shell("# vllm serve m --tensor-parallel-size 8\nsleep 1"),
    ray_over_several_pods=(shell("ray start --head; vllm serve m --tensor-parallel-size 16", 8)),
    ray_as_the_backend=(shell("vllm serve m -tp 16 --distributed-executor-backend ray", 8)),
    sglang_on_two_nodes=(shell("python -m sglang.launch_server --tp 16 --nnodes 2 --node-rank 0", 8)),
    leader_of_a_leaderworkerset=(
        shell("bash multi-node-serving.sh leader; vllm serve m --tensor-parallel-size 16", 8)
    ),
    data_parallel=(shell("vllm serve m --tensor-parallel-size 2 --data-parallel-size 4", 8)),
    pipeline=(shell("vllm serve m --tensor-parallel-size 2 --pipeline-parallel-size 4", 8)),
    two_servers=shell("vllm serve a -tp 1 & vllm serve b -tp 1", 2),
    a_server_for_each=(shell("for i in 0 1; do CUDA_VISIBLE_DEVICES=$i vllm serve m -tp 1; done")),
    two_each_on_two=(shell("accelerate launch --num_processes 4 --num_machines 2 train.py")),
    machines_unknown=shell("accelerate launch --num_processes 16 --num_machines $MACHINES train.py"),
    machines_of_a_file=shell("accelerate launch --config_file fsdp.yaml --num_processes 16 train.py"),
    processes_of_something_else=shell("python serve.py --num_processes 8"),
    no_gpu=pod(container(args=["--tensor-parallel-size", "4"])),
    neuron=pod(gpu_container(16, resource="aws.amazon.com/neuron", args=["--nproc_per_node=32"])),
    processes_and_a_slice=pod(gpu_container(1, resource="nvidia.com/mig-3g.40gb", args=["-tp", "2"])),
    a_slice_for_each=pod(*(gpu_container(1, name, "nvidia.com/mig-1g.10gb") for name in "ab")),
    more_gpus_by_a_claim=(
        pod(
            gpu_container(
                2,
                args=["-tp", "4"],
                resources={"limits": {"nvidia.com/gpu": 2}, "claims": [{"name": "x"}]},
            ),
            resourceClaims=[{"name": "x"}],
        )
    ),
    too_long_to_be_read=shell("torchrun --nproc_per_node 8 train.py\n".ljust(16_385 - len("sh-c") - 3, "x")),
    amount_that_is_no_quantity=pod(gpu_container("many", args=["-tp", "4"])),
)
def test_what_agrees_or_cannot_be_known(document: JSON) -> None:
    assert findings(document) == []


SLICE = "nvidia.com/mig-1g.10gb"


@cases(
    ("resources", "where"),
    two_of_a_kind=({"limits": {SLICE: "2"}}, "limits"),
    one_of_each_kind=({"limits": {SLICE: 1, "nvidia.com/mig-1g.20gb": 1}}, "limits"),
    request_alone=({"requests": {SLICE: "2"}}, "requests"),
)
def test_several_slices_in_one_container(resources: JSON, where: str) -> None:
    assert findings(pod(container(resources=resources))) == [
        f'spec.containers[0].resources.{where}[{SLICE}] (container "main") = "2": request one larger slice, '
        "or one in each container; should be 1: a CUDA process sees one slice of a card, so the others stay "
        "idle unless more processes run"
    ]


# ---- workloads


def job(kind: str, spec: JSON, api_version: str = "kubeflow.org/v1") -> JSON:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "train"}, "spec": spec}


def pytorch(processes: Any, gpus: int, command: str = "torchrun") -> JSON:
    template = {"spec": {"containers": [gpu_container(gpus, command=[command])]}}
    replicas = {"Master": {"template": template}, "Worker": {"template": template}}
    return job("PyTorchJob", {"nprocPerNode": processes, "pytorchReplicaSpecs": replicas})


def mpi(slots: int, gpus: int, launch: str) -> JSON:
    launcher = {"spec": {"containers": [container(command=["sh", "-c", launch])]}}
    replicas = {
        "Launcher": {"template": launcher},
        "Worker": {"template": {"spec": {"containers": [gpu_container(gpus)]}}},
    }
    return job("MPIJob", {"slotsPerWorker": slots, "mpiReplicaSpecs": replicas}, "kubeflow.org/v2beta1")


def train_job(processes: int, gpus: int) -> JSON:
    trainer = {"numProcPerNode": processes, "resourcesPerNode": {"limits": {"nvidia.com/gpu": gpus}}}
    return job("TrainJob", {"trainer": trainer}, "trainer.kubeflow.org/v1alpha1")


MPI_WORKER = "a pod of spec.mpiReplicaSpecs.Worker.template"


@cases(
    ("document", "want"),
    pytorchjob_with_more=(
        pytorch("4", 1),
        'spec.nprocPerNode = "4": ' + more(4, 1, "a pod of spec.pytorchReplicaSpecs.Worker.template"),
    ),
    mpi_with_more=(mpi(8, 4, "mpirun train"), 'spec.slotsPerWorker = "8": ' + more(8, 4, MPI_WORKER)),
    mpi_fewer=(mpi(1, 8, "mpirun train"), 'spec.slotsPerWorker = "1": ' + fewer(1, 8, MPI_WORKER)),
    trainjob_with_fewer=(
        train_job(2, 8),
        'spec.trainer.numProcPerNode = "2": ' + fewer(2, 8, "a pod of spec.trainer.resourcesPerNode"),
    ),
    pytorchjob_auto=(pytorch("auto", 8), ""),
    pytorchjob_as_many=(pytorch(8, 8), ""),
    script_that_may_start_its_own_processes=(pytorch("1", 8, command="python"), ""),
    several_gpus_a_process=(mpi(1, 8, "mpirun -np 2 all_reduce_perf -g 8"), ""),
    mpijob_as_many=(mpi(8, 8, "mpirun train"), ""),
    kind_without_the_field=(job("TFJob", {"nprocPerNode": 4}), ""),
    no_workload=({"apiVersion": "v1", "kind": "ConfigMap"}, ""),
)
def test_processes_of_a_workload(document: JSON, want: str) -> None:
    assert advice(document) == ([want] if want else [])


def test_only_the_first_scripts_of_a_pod_are_read() -> None:
    script = "torchrun --nproc_per_node 8 train.py\n".ljust(16_384 // 2 - 1, "x")

    checked = view(pod(*[gpu_container("4", f"c{number}", args=[script]) for number in range(3)]))

    assert [each.container for each in check(checked, RULE.options(), context())] == ["c0", "c1"]
