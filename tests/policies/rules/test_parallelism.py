"""parallelism: a warning with both numbers where processes and GPUs certainly do not agree, and silence elsewhere."""

from policies.finding import Finding
from policies.pods.field_paths import path_parts, with_edits
from policies.rules.parallelism import RULE, check, check_workload
from tests.builders import JSON, container, context, gpu_container, pod, view, workload
from tests.cases import cases
from tests.policies.rules.processes import (
    OPTIONS,
    VLLM,
    dynamo,
    fewer,
    findings,
    group,
    llm,
    model_booster,
    more,
    mpi,
    nim,
    pytorch,
    ray,
    ray_job,
    ray_service,
    served,
    shell,
    vllm_runtime,
    wrapped,
)


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


def all_findings(document: JSON) -> list[Finding]:
    """Return what is said about the object, or about the pods of its templates."""
    if document["kind"] == "Pod":
        return list(check(view(document), OPTIONS, context()))
    made = workload(document)
    of_pods = ((pod, each) for pod in made.pods for each in check(pod.pod, OPTIONS, context(owner=pod.owner)))
    return [*check_workload(made, OPTIONS, context()), *(each.located(pod.located) for pod, each in of_pods)]


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
    serve=ray_service(served(2, num_replicas=3), gpus=4, maxReplicas=1),
    nim=nim(8, 4),
    llm=llm({"tensor": 2, "data": 8, "dataLocal": 4}, 4),
    vllm_runtime=vllm_runtime(2, "1"),
    nodes=dynamo(2, "4", "-tp", "4", "-pp", "4"),
    group_of_pods=group(2, 8, "vllm serve m -tp 32"),
)
def test_each_choice_removes_the_finding(document: JSON) -> None:
    for finding in all_findings(document):
        assert len(finding.choices) == len(finding.remedy.split(" or ")) == 1 + ("serve" not in finding.path)
        assert finding.fix == ()
        for edits in finding.choices:
            changed = with_edits(document, [(path_parts(edit.path), edit.value) for edit in edits])
            left = [(each.path, each.value) for each in all_findings(changed)]
            assert (finding.path, finding.value) not in left
            assert len(left) < len(all_findings(document))


def test_only_the_first_scripts_of_a_pod_are_read() -> None:
    script = "torchrun --nproc_per_node 8 train.py\n".ljust(16_384 // 2 - 1, "x")

    checked = view(pod(*[gpu_container("4", f"c{number}", args=[script]) for number in range(3)]))

    assert [each.container for each in check(checked, RULE.options(), context())] == ["c0", "c1"]
