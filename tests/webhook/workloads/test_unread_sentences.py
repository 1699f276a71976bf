"""The whole sentences about GPUs of an object that are not read."""

from tests.builders import JSON
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.workloads.unread import unread_gpus

BUILT_IN = load_directory(None)
CREATED = "are read only in the pods that the controller creates [workloads]"
ASK = "ask the platform team to name their paths in workloadKinds of a GPUResourceMapping [workloads]"


@cases(
    ("group", "kind", "spec", "want"),
    more_than_are_named=(
        "example.com",
        "TrainingJob",
        {name: {"gpu": 1} for name in "abcde"},
        f"spec.a.gpu: GPUs in spec.a.gpu, spec.b.gpu, spec.c.gpu and 2 more are not read; {ASK}",
    ),
    beside_the_pods_of_a_known_kind=(
        "kubeflow.org",
        "PyTorchJob",
        {"elasticPolicy": {"limits": {"nvidia.com/gpu": 1}}},
        "spec.elasticPolicy.limits[nvidia.com/gpu]: write them into spec.pytorchReplicaSpecs.Worker.template; GPUs in "
        f"spec.elasticPolicy.limits[nvidia.com/gpu] are not read; or {ASK}",
    ),
    of_a_key_of_a_framework=(
        "sparkoperator.k8s.io",
        "SparkApplication",
        {"sparkConf": {"spark.executor.resource.gpu.amount": "1"}},
        "spec.sparkConf[spark.executor.resource.gpu.amount]: write them into spec.executor; GPUs in "
        f"spec.sparkConf[spark.executor.resource.gpu.amount] are not read; or {ASK}",
    ),
    of_a_claim_of_which_the_field_names_the_template=(
        "apps.nvidia.com",
        "NIMService",
        {"draResources": [{"resourceClaimTemplateName": "one"}]},
        f"spec.draResources[0].resourceClaimTemplateName: the GPUs of one {CREATED}",
    ),
    of_jobs_of_which_a_config_map_says_them=(
        "apps.nvidia.com",
        "NemoCustomizer",
        {"modelConfig": {"name": "models"}},
        f"spec.modelConfig.name: the GPUs of models {CREATED}",
    ),
    of_deployments_in_a_config_map=(
        "llm-d.ai",
        "ModelService",
        {"baseConfigMapRef": {"name": "llama"}, "decode": {"replicas": 2}},
        f"spec.baseConfigMapRef.name: the GPUs of llama {CREATED}",
    ),
    of_machines_with_tpus=(
        "pathways-job.pathways.domain",
        "PathwaysJob",
        {"workers": [{"type": "ct5p-hightpu-4t", "topology": "2x2x2", "numSlices": 2}]},
        f"spec.workers[0].type: the GPUs of ct5p-hightpu-4t {CREATED}",
    ),
    of_a_configuration_of_kserve=(
        "serving.kserve.io",
        "LLMInferenceService",
        {"baseRefs": [{"name": "llama"}]},
        f"spec.baseRefs[0].name: the GPUs of llama {CREATED}",
    ),
    of_a_set_of_a_model_on_nodes_of_ones_own=(
        "kaito.sh",
        "InferenceSet",
        {"template": {"inference": {"preset": {"name": "phi-4"}}}},
        f"spec.template.inference.preset.name: the GPUs of phi-4 {CREATED}",
    ),
    of_a_runtime_of_ome=(
        "ome.io",
        "InferenceService",
        {"model": {"name": "llama"}, "runtime": {"name": "vllm"}, "engine": {"minReplicas": 1}},
        f"spec.runtime.name: the GPUs of vllm {CREATED}",
    ),
    of_a_model_of_ome=(
        "ome.io",
        "InferenceService",
        {"model": {"name": "llama"}},
        f"spec.model.name: the GPUs of llama {CREATED}",
    ),
    of_a_model_of_llmaz=(
        "inference.llmaz.io",
        "Playground",
        {"modelClaim": {"modelName": "opt"}},
        f"spec.modelClaim.modelName: the GPUs of opt {CREATED}",
    ),
    of_the_models_of_a_service=(
        "inference.llmaz.io",
        "Service",
        {"modelClaims": {"models": [{"name": "opt"}]}},
        f"spec.modelClaims.models[0].name: the GPUs of opt {CREATED}",
    ),
    of_workers_that_the_runtime_describes=(
        "serving.kserve.io",
        "InferenceService",
        {"predictor": {"model": {}, "workerSpec": {}}},
        f"spec.predictor.workerSpec: the GPUs of spec.predictor.workerSpec {CREATED}",
    ),
)
def test_gpus_that_are_not_read(group: str, kind: str, spec: JSON, want: str) -> None:
    data = {"kind": kind, "spec": spec}
    (found,) = unread_gpus(group, kind, data, (), BUILT_IN.resource_mapping, BUILT_IN.workload_kinds)

    assert found.sentence() == want
