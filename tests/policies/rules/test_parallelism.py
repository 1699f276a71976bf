"""parallelism: a warning with both numbers where processes and GPUs certainly do not agree, and silence elsewhere."""

from typing import Any

from policies.finding import Finding, Severity
from policies.pods.field_paths import path_parts, with_edits
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
        "set 4 or request 4 GPUs in each pod; should be at most 4, the GPUs of 2 machines with 2 each",
    ),
    the_sixteenth_flag=(shell("-tp 2\n" * 15 + "-tp 4"), "args[0] -tp 4", more(4, 2)),
    pipeline_times_tensor=(
        shell("vllm serve m -tp 2 --pipeline-parallel-size=4", 4),
        "args[0] -tp 2",
        "set 1 or request 8 GPUs; with --pipeline-parallel-size 4, 8 processes start on the 4 GPUs of the container",
    ),
    pipeline_alone=(shell("sglang serve m --pp-size 4"), "args[0] --pp-size 4", more(4, 2)),
    more_than_can_be_divided=(
        shell("vllm serve m -tp 2 -pp 4 --data-parallel-size 2"),
        "args[0] -tp 2",
        "request 16 GPUs; with -pp 4 and --data-parallel-size 2, 16 processes start on the 2 GPUs of the container",
    ),
    tensor_and_pipeline_with_fewer=(
        shell("vllm serve m -tp 2 -pp 2", 8),
        "args[0] -tp 2",
        "set 4 or request 4; with -pp 2, 4 processes start on the 8 GPUs of the container: the others stay idle",
    ),
    ray_start=(shell("ray start --address=head --num-gpus=8", 4), "args[0] --num-gpus 8", more(8, 4)),
    deepspeed=(shell("deepspeed --num_gpus 4 train.py"), "args[0] --num_gpus 4", more(4, 2)),
    variable_of_the_container=(
        pod(
            gpu_container(2, args=[*VLLM, "--tensor-parallel-size=$(TP)"], env=[{"name": "TP", "value": "4"}])
        ),
        "args[3] --tensor-parallel-size 4",
        more(4, 2),
    ),
    variable_with_a_default=(
        pod(
            gpu_container(
                2,
                command=["sh", "-c", "vllm serve m --tp ${TP:-1}"],
                env=[{"name": "TP", "value": "4"}],
            )
        ),
        "command[2] --tp 4",
        more(4, 2),
    ),
    shards_of_tgi=(
        pod(
            gpu_container(
                2,
                image="ghcr.io/huggingface/text-generation-inference:3.3",
                env=[{"name": "PORT", "value": "80"}, {"name": "NUM_SHARD", "value": "4"}],
            )
        ),
        " --num-shard 4",
        more(4, 2),
    ),
    tgi_on_amd=(
        pod(gpu_container(1, resource="amd.com/gpu", args=["--num-shard", "2"])),
        "args[0] --num-shard 2",
        more(2, 1),
    ),
)
def test_processes_that_do_not_agree_with_the_gpus(document: JSON, at: str, want: str) -> None:
    where, _, value = at.partition(" ")
    path = f"spec.containers[0].{where}".removesuffix(".")
    assert findings(document) == [f'{path} (container "main") = "{value}": {want}']


@cases(
    "document",
    as_many=shell("vllm serve m --tensor-parallel-size 2"),
    no_flag=shell("vllm serve m"),
    a_seventeenth_flag=shell("-tp 2\n" * 16 + "-tp 4"),
    variable=shell("vllm serve m --tensor-parallel-size $GPUS"),
    no_machines=shell("accelerate launch --num_processes 2 --num_machines 0 train.py"),
    variable_that_the_script_sets=(
        pod(
            gpu_container(
                2,
                command=["sh", "-c", "TP=2; vllm serve m --tp $TP"],
                env=[{"name": "TP", "value": "4"}],
            )
        )
    ),
    shards_of_something_else=pod(gpu_container(2, env=[{"name": "NUM_SHARD", "value": "4"}])),
    gpus_of_a_script=shell("python train.py --num-gpus 8"),
    pipeline_of_a_training_script=shell("python train.py --tp 2 --pp 4"),
    data_parallelism_within_tensor_parallelism=shell("sglang serve m --tp 2 --dp 2"),
    data_parallelism_of_other_pods=shell("vllm serve m --data-parallel-size 8 --data-parallel-size-local 2"),
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


def runtime(policy: JSON, gpus: int) -> JSON:
    template = {"spec": {"template": {"spec": {"containers": [gpu_container(gpus)]}}}}
    spec = {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": [{"template": template}]}}}
    return job("ClusterTrainingRuntime", spec, "trainer.kubeflow.org/v1alpha1")


def template(gpus: int, **container_: Any) -> JSON:
    return {"spec": {"containers": [gpu_container(gpus, **container_)]}}


def ray(params: str, gpus: int, **group: Any) -> JSON:
    worker = {"rayStartParams": {"num-gpus": params}, "template": template(gpus), **group}
    head = {"rayStartParams": {"num-gpus": "0"}, "template": template(1)}
    return job("RayCluster", {"headGroupSpec": head, "workerGroupSpecs": [worker]}, "ray.io/v1")


def ray_job(entrypoint: float, head: int, worker: int, params: str = "", **head_: Any) -> JSON:
    groups = {
        "headGroupSpec": {"template": template(head, **head_)},
        "workerGroupSpecs": [{"rayStartParams": {"num-gpus": params}, "template": template(worker)}],
    }
    return job("RayJob", {"entrypointNumGpus": entrypoint, "rayClusterSpec": groups}, "ray.io/v1")


def model_booster(gpus: int, pods: int, **config: int) -> JSON:
    named = {key.replace("_", "-"): value for key, value in config.items()}
    worker = {"resources": {"limits": {"nvidia.com/gpu": gpus}}, "pods": pods, "config": named}
    return job("ModelBooster", {"backend": {"workers": [worker]}}, "workload.serving.volcano.sh/v1alpha1")


def wrapped(document: JSON) -> JSON:
    return job("AppWrapper", {"components": [{"template": document}]}, "workload.codeflare.dev/v1beta2")


def nim(tensor: int, gpus: int) -> JSON:
    parallelism = {"tensor": tensor, "pipeline": 2}
    spec = {"resources": {"limits": {"nvidia.com/gpu": gpus}}, "multiNode": {"parallelism": parallelism}}
    return job("NIMService", spec, "apps.nvidia.com/v1alpha1")


def llm(parallelism: JSON, gpus: int, **container_: Any) -> JSON:
    spec = {"parallelism": parallelism, "template": template(gpus, **container_)["spec"]}
    return job("LLMInferenceService", spec, "serving.kserve.io/v1alpha2")


def vllm_runtime(tensor: int, gpus: str, *extra: str) -> JSON:
    spec = {"vllmConfig": {"tensorParallelSize": tensor, "extraArgs": extra}}
    return job(
        "VLLMRuntime",
        {**spec, "deploymentConfig": {"resources": {"gpu": gpus}}},
        "production-stack.vllm.ai/v1alpha1",
    )


MPI_WORKER = "a pod of spec.mpiReplicaSpecs.Worker.template"
RAY_WORKER = "a pod of spec.workerGroupSpecs[0].template"
NODES = "a pod of spec.template.spec.replicatedJobs[0].template.spec.template"
MPI_POLICY = {"mpi": {"numProcPerNode": 1}}


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
    runtime_with_more=(
        runtime({"mpi": {"numProcPerNode": 4}}, 2),
        'spec.mlPolicy.mpi.numProcPerNode = "4": ' + more(4, 2, NODES),
    ),
    one_process_where_releases_differ=(
        runtime(MPI_POLICY, 2),
        'spec.mlPolicy.mpi.numProcPerNode = "1": set 2 or request 1; '
        f"should be 2, the GPUs of {NODES}: the others stay idle before Kubeflow Trainer 2.1",
    ),
    ray_with_more=(
        ray("8", 4),
        'spec.workerGroupSpecs[0].rayStartParams.num-gpus = "8": ' + more(8, 4, RAY_WORKER),
    ),
    ray_with_fewer=(
        ray("1", 4),
        'spec.workerGroupSpecs[0].rayStartParams.num-gpus = "1": ' + fewer(1, 4, RAY_WORKER),
    ),
    ray_resources=(
        ray("", 4, resources={"GPU": "8"}),
        'spec.workerGroupSpecs[0].resources.GPU = "8": ' + more(8, 4, RAY_WORKER),
    ),
    ray_in_another_object=(
        wrapped(ray("8", 4)),
        'components[0]…workerGroupSpecs[0].rayStartParams.num-gpus = "8": '
        + more(8, 4, "a pod of spec.components[0].template.spec.workerGroupSpecs[0].template"),
    ),
    nim_with_more=(
        nim(8, 4),
        'spec.multiNode.parallelism.tensor = "8": ' + more(8, 4, "a pod of spec.resources"),
    ),
    llm_with_more=(
        llm({"tensor": 4}, 2),
        'spec.parallelism.tensor = "4": ' + more(4, 2, "a pod of spec.template"),
    ),
    llm_with_more_servers=(
        llm({"tensor": 2, "data": 8, "dataLocal": 4}, 4),
        'spec.parallelism.tensor = "2": set 1 or request 8 GPUs; '
        "with spec.parallelism.dataLocal 4, 8 processes start on the 4 GPUs of a pod of spec.template",
    ),
    vllm_runtime_with_more=(
        vllm_runtime(2, "1"),
        'spec.vllmConfig.tensorParallelSize = "2": ' + more(2, 1, "a pod of spec.deploymentConfig"),
    ),
    ray_entrypoint_with_more_than_any_pod=(
        ray_job(8, head=1, worker=4),
        'spec.entrypointNumGpus = "8": '
        + more(8, 4, "a pod of spec.rayClusterSpec.workerGroupSpecs[0].template"),
    ),
    ray_entrypoint_with_more_than_the_head=(
        ray_job(2, head=1, worker=0),
        'spec.entrypointNumGpus = "2": ' + more(2, 1, "a pod of spec.rayClusterSpec.headGroupSpec.template"),
    ),
    model_booster_with_more=(
        model_booster(1, 1, tensor_parallel_size=2),
        'spec.backend.workers[0].config.tensor-parallel-size = "2": '
        + more(2, 1, "a pod of spec.backend.workers[0].resources"),
    ),
    model_booster_with_more_than_all_pods=(
        model_booster(4, 2, tensor_parallel_size=4, pipeline_parallel_size=4),
        'spec.backend.workers[0].config.tensor-parallel-size = "4": set 2 or request 8 GPUs in each pod; '
        "with spec.backend.workers[0].config.pipeline-parallel-size 4, 16 processes start on the 8 GPUs of 2 pods with 4 each",
    ),
    ray_entrypoint_on_a_worker=(ray_job(4, head=1, worker=4), ""),
    ray_entrypoint_of_a_part=(ray_job(0.5, head=1, worker=4), ""),
    ray_entrypoint_beside_a_slice=(
        ray_job(8, head=1, worker=4, resources={"limits": {"nvidia.com/gpu.shared": 8}}),
        "",
    ),
    model_booster_over_two_pods=(model_booster(4, 2, tensor_parallel_size=8), ""),
    model_booster_with_replicas_of_data=(
        model_booster(1, 1, tensor_parallel_size=2, data_parallel_size=2),
        "",
    ),
    ray_as_many=(ray("4", 4), ""),
    ray_fraction=(ray("0.5", 4), ""),
    nim_as_many=(nim(4, 4), ""),
    llm_as_many=(llm({"tensor": 2, "data": 8, "dataLocal": 2}, 4), ""),
    llm_with_its_own_command=(llm({"tensor": 4}, 2, command=["vllm", "serve"]), ""),
    llm_with_its_own_arguments=(llm({"tensor": 4}, 2, args=["--tensor-parallel-size=2"]), ""),
    llm_in_a_pipeline=(llm({"tensor": 4, "pipeline": 2}, 2), ""),
    vllm_runtime_in_a_pipeline=(vllm_runtime(1, "2", "--pipeline-parallel-size=2"), ""),
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


def dynamo(nodes: int, gpus: str, *args: str) -> JSON:
    """Return a graph with a service of these nodes and GPUs, and one of a single node."""
    server = {"resources": {"limits": {"gpu": gpus}}, "multinode": {"nodeCount": nodes}}
    main = {"mainContainer": {"command": ["python3", "-m", "dynamo.vllm"], "args": [*args]}}
    services = {"Decode": {**server, "extraPodSpec": main}, "Other": {"resources": {"limits": {"gpu": "8"}}}}
    return job("DynamoGraphDeployment", {"services": services}, "nvidia.com/v1alpha1")


def group(size: int, gpus: int, command: str, leader: int = 0) -> JSON:
    """Return a LeaderWorkerSet with these GPUs in each pod, and in a leader of its own, if any."""
    script = {"command": ["sh", "-c", command]}
    leaders = {"leaderTemplate": template(leader, **script)} if leader else {}
    spec = {"leaderWorkerTemplate": {"size": size, "workerTemplate": template(gpus, **script), **leaders}}
    return job("LeaderWorkerSet", spec, "leaderworkerset.x-k8s.io/v1")


@cases(
    ("document", "want"),
    as_many_as_on_all_nodes=(dynamo(2, "1", "--tensor-parallel-size", "2"), ""),
    more_than_on_all_nodes=(
        dynamo(2, "4", "--tensor-parallel-size", "16"),
        "--tensor-parallel-size 16: set 8 or request 8 GPUs in each pod; "
        "should be at most 8, the GPUs of 2 pods with 4 each",
    ),
    pipeline_over_nodes=(dynamo(2, "4", "-tp", "4", "-pp", "2"), ""),
    pipeline_over_too_few_nodes=(
        dynamo(2, "4", "-tp", "4", "-pp", "4"),
        "-tp 4: set 2 or request 8 GPUs in each pod; "
        "with -pp 4, 16 processes start on the 8 GPUs of 2 pods with 4 each",
    ),
    one_node=(dynamo(1, "1", "--tp", "2"), f"--tp 2: {more(2, 1)}"),
    unknown_nodes=(dynamo("{{nodes}}", "1", "--tp", "2"), ""),  # type: ignore[arg-type]
    a_copy_on_each_node=(dynamo(2, "4", "--tp", "4"), ""),
    in_a_group=(group(2, 8, "ray start --head; vllm serve m -tp 16", leader=8), ""),
    more_than_in_a_group=(
        group(2, 8, "ray start --head; vllm serve m -tp 32"),
        "-tp 32: set 16 or request 16 GPUs in each pod; should be at most 16, the GPUs of 2 pods with 8 each",
    ),
    a_group_in_another_object=(wrapped(group(2, 8, "vllm serve m -tp 16")), ""),
)
def test_servers_on_several_nodes(document: JSON, want: str) -> None:
    pods = workload(document).pods
    found = [each for pod in pods for each in check(pod.pod, OPTIONS, context(owner=pod.owner))]
    assert [f"{each.value}: {each.advice}; {each.message}" for each in found] == ([want] if want else [])


def all_findings(document: JSON) -> list[Finding]:
    """Return what is said about the object, or about the pods of its templates."""
    if document["kind"] == "Pod":
        return list(check(view(document), OPTIONS, context()))
    made = workload(document)
    of_pods = ((pod, each) for pod in made.pods for each in check(pod.pod, OPTIONS, context(owner=pod.owner)))
    return [*check_workload(made, OPTIONS, context()), *(each.at(pod.located) for pod, each in of_pods)]


@cases(
    "document",
    flag_of_its_own_item=pod(gpu_container(2, args=[*VLLM, "--tensor-parallel-size", "4"])),
    flag_with_its_number=pod(gpu_container(8, args=[*VLLM, "--tensor-parallel-size=2"])),
    flag_in_a_script=shell("vllm serve m \\\n  -tp 2 -pp 4 \\\n  --seed 2", 4),
    variable=pod(gpu_container(2, args=["vllm", "--tp=$(TP)"], env=[{"name": "TP", "value": "4"}])),
    request_and_limit=pod(
        container(
            args=["vllm", "--tp", "4"],
            resources={"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}},
        )
    ),
    shards_of_tgi=pod(
        gpu_container(2, image="text-generation-inference", env=[{"name": "NUM_SHARD", "value": "4"}])
    ),
    slots=mpi(8, 4, "mpirun train"),
    processes_as_text=pytorch("4", 1),
    ray=wrapped(ray("8", 4)),
    ray_entrypoint=ray_job(8, head=1, worker=4),
    model_booster=model_booster(4, 2, tensor_parallel_size=4, pipeline_parallel_size=4),
    nim=nim(8, 4),
    llm=llm({"tensor": 2, "data": 8, "dataLocal": 4}, 4),
    vllm_runtime=vllm_runtime(2, "1"),
    nodes=dynamo(2, "4", "-tp", "4", "-pp", "4"),
    group_of_pods=group(2, 8, "vllm serve m -tp 32"),
)
def test_each_choice_removes_the_finding(document: JSON) -> None:
    for finding in all_findings(document):
        assert len(finding.choices) == len(finding.remedy.split(" or ")) == 2
        for edits in finding.choices:
            changed = with_edits(document, [(path_parts(edit.path), edit.value) for edit in edits])
            left = [(each.path, each.value) for each in all_findings(changed)]
            assert (finding.path, finding.value) not in left
            assert len(left) < len(all_findings(document))


def test_only_the_first_scripts_of_a_pod_are_read() -> None:
    script = "torchrun --nproc_per_node 8 train.py\n".ljust(16_384 // 2 - 1, "x")

    checked = view(pod(*[gpu_container("4", f"c{number}", args=[script]) for number in range(3)]))

    assert [each.container for each in check(checked, RULE.options(), context())] == ["c0", "c1"]
