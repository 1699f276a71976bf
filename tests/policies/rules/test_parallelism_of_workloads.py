"""parallelism, of the fields in which objects say how many processes, nodes and GPUs they have."""

from policies.rules.parallelism import check
from tests.builders import JSON, context, workload
from tests.cases import cases
from tests.policies.rules.processes import (
    OPTIONS,
    advice,
    dynamo,
    fewer,
    group,
    job,
    llm,
    llms,
    model_booster,
    more,
    mpi,
    nim,
    pytorch,
    ray,
    ray_job,
    ray_service,
    runtime,
    served,
    train_job,
    vllm_runtime,
    wrapped,
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
    serve_replicas_with_more=(
        ray_service(served(2, num_replicas=3), gpus=4),
        "spec.serveConfigV2: set spec.rayClusterConfig.workerGroupSpecs[0].replicas: 2; "
        "its deployments need 6 GPUs, and all pods have 4",
    ),
    serve_parts_with_more=(
        ray_service(served(0.5, autoscaling_config={"min_replicas": 3}), gpus=1, numOfHosts=1, maxReplicas=1),
        "spec.serveConfigV2: set spec.rayClusterConfig.workerGroupSpecs[0].replicas: 2 and "
        "spec.rayClusterConfig.workerGroupSpecs[0].maxReplicas: 2; its deployments need 1.5 GPUs, and all pods have 1",
    ),
    serve_more_than_an_autoscaler_adds=(
        ray_service(served(1, num_replicas=9), gpus=4, replicas=0, elastic=True, maxReplicas=2),
        "spec.serveConfigV2: set spec.rayClusterConfig.workerGroupSpecs[0].maxReplicas: 3; "
        "its deployments need 9 GPUs, and all pods have 8",
    ),
    serve_llm_with_more=(
        ray_service(llms({"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, num_replicas=1), gpus=8),
        "spec.serveConfigV2: set spec.rayClusterConfig.workerGroupSpecs[0].replicas: 2; "
        "its deployments need 16 GPUs, and all pods have 8",
    ),
    serve_bundles_with_more=(
        ray_service(
            served(1, num_replicas=2, placement_group_bundles=[{"GPU": 1}, {"GPU": 2, "CPU": 4}]), gpus=4
        ),
        "spec.serveConfigV2: set spec.rayClusterConfig.workerGroupSpecs[0].replicas: 2; "
        "its deployments need 6 GPUs, and all pods have 4",
    ),
    serve_as_many=(ray_service(served(2, num_replicas=2), gpus=4), ""),
    serve_replicas_of_the_code=(ray_service(served(8), gpus=4), ""),
    serve_replicas_that_are_auto=(ray_service(served(8, num_replicas="auto"), gpus=4), ""),
    serve_llm_with_bundles_of_its_own=(
        ray_service(
            llms({"tensor_parallel_size": 8}, {"resources_per_bundle": {"GPU": 0.5}}, num_replicas=1), gpus=4
        ),
        "",
    ),
    serve_without_a_bound=(ray_service(served(1, num_replicas=9), gpus=4, elastic=True), ""),
    serve_without_workers=(ray_service(served(1, num_replicas=9), gpus=4, replicas=0), ""),
    serve_on_no_gpus=(ray_service(served(1, num_replicas=9), gpus=0), ""),
    serve_config_of_another_form=(ray_service({"applications": {"deployments": [1]}}, gpus=1), ""),
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
