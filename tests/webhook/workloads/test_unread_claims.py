"""Claims (DRA) in objects whose claims are not read: a warning with their place."""

import msgspec
import yaml

from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.workloads.places import workload_pods
from webhook.workloads.unread import unread_gpus

BUILT_IN = load_directory(None)
MAPPING, KINDS = BUILT_IN.resource_mapping, BUILT_IN.workload_kinds
SETS = (
    "resourceClaimTemplates: [{name: one, templateSpec: {spec: {devices: {requests: "
    "[{name: a, exactly: {deviceClassName: gpu.nvidia.com}}]}}}}]"
)
CLAIMS = "resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]"


@cases(
    ("kind", "text", "want"),
    values=(
        "HelmRelease.helm.toolkit.fluxcd.io",
        f"spec: {{values: {{{CLAIMS}}}}}",
        "spec.values.resourceClaims[0].resourceClaimTemplateName",
    ),
    values_as_text=(
        "Application.argoproj.io",
        'spec: {source: {helm: {values: "a: 1\\nresourceClaims:\\n- name: gpu\\n  resourceClaimName: one\\n"}}}',
        "spec.source.helm.values",
    ),
    a_parameter=(
        "Application.argoproj.io",
        "spec: {source: {helm: {parameters: [{name: 'resourceClaims[0].resourceClaimName', value: one}]}}}",
        "spec.source.helm.parameters[0]",
    ),
    none_of_them=(
        "HelmRelease.helm.toolkit.fluxcd.io",
        "spec: {values: {resourceClaims: [], a: {resourceClaimName: ''}}}",
        "",
    ),
    of_an_unknown_kind=(
        "Server.example.com",
        f"spec: {{{CLAIMS}}}",
        "spec.resourceClaims[0].resourceClaimTemplateName",
    ),
    which_a_template_has=(
        "Deployment.apps",
        f"spec: {{template: {{spec: {{containers: [{{name: a}}], {CLAIMS}}}}}}}",
        "",
    ),
    which_a_pod_spec_has=(
        "InferenceService.serving.kserve.io",
        f"spec: {{predictor: {{model: {{}}, {CLAIMS}}}}}",
        "",
    ),
    which_a_workflow_has_for_its_templates=(
        "Workflow.argoproj.io",
        f"spec: {{{CLAIMS}, templates: [{{name: a, container: {{image: a}}}}]}}",
        "",
    ),
    a_class_of_an_unknown_kind=(
        "Server.example.com",
        "spec: {devices: [{deviceClassName: gpu.nvidia.com}]}",
        "spec.devices[0].deviceClassName",
    ),
    a_class_of_no_gpus=(
        "Server.example.com",
        "spec: {devices: [{deviceClassName: compute-domain-daemon.nvidia.com}, {deviceClassName: ''}]}",
        "",
    ),
    a_class_that_the_controller_makes_a_claim_of=(
        "NIMService.apps.nvidia.com",
        "spec: {resources: {limits: {cpu: 8}}, "
        "draResources: [{claimCreationSpec: {devices: [{deviceClassName: gpu.nvidia.com}]}}]}",
        "spec.draResources[0].claimCreationSpec.devices[0].deviceClassName",
    ),
    a_class_of_a_template_that_no_pod_names=(
        "PodCliqueSet.grove.io",
        f"spec: {{template: {{{SETS}, cliques: [{{spec: {{podSpec: {{containers: [{{name: a}}]}}}}}}]}}}}",
        "spec.template.resourceClaimTemplates[0].templateSpec.spec.devices.requests[0].exactly.deviceClassName",
    ),
    a_class_of_a_template_that_a_pod_names=(
        "PodCliqueSet.grove.io",
        f"spec: {{template: {{{SETS}, cliques: [{{spec: {{podSpec: {{containers: [{{name: a}}], {CLAIMS}}}}}}}]}}}}",
        "",
    ),
    beside_amounts=(
        "InferenceService.inference.llmkube.dev",
        f"spec: {{resources: {{gpu: 1}}, {CLAIMS}}}",
        "spec.resourceClaims[0].resourceClaimTemplateName",
    ),
)
def test_claims_that_are_not_read(kind: str, text: str, want: str) -> None:
    name, _, group = kind.partition(".")
    data, pods = workload_pods(KINDS, group, name, msgspec.json.encode(yaml.safe_load(text)))

    assert [each.path for each in unread_gpus(group, name, data, pods, MAPPING, KINDS)] == (
        [want] if want else []
    )
