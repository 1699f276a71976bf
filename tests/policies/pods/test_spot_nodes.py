"""What is said of a GPU pod that selects spot nodes."""

from policies.finding import as_plain_data
from policies.pods.spot_nodes import spot_findings
from tests.builders import JSON, REQUIRED, container, pod, view
from tests.cases import cases
from tests.policies.placement.affinities import PREFERRED, affine

GKE, EKS = "cloud.google.com/gke-spot", "eks.amazonaws.com/capacityType"
KARPENTER, AKS = "karpenter.sh/capacity-type", "kubernetes.azure.com/scalesetpriority"
TOLERATED = [{"key": AKS, "operator": "Equal", "value": "spot", "effect": "NoSchedule"}]


def said(spec: JSON, *containers: JSON, is_training: bool = False) -> list[str]:
    document = pod(*(containers or (container(),)), **spec)
    return [each.sentence() for each in spot_findings(view(document), is_training=is_training)]


def notice(grace: int, provider: str, seconds: int, unless: str = "") -> list[str]:
    return [
        f'spec.terminationGracePeriodSeconds = "{grace}": holds for drains: on a spot node of {provider} pods have {seconds} s '
        f"after the notice{unless}"
    ]


def within(grace: int, key: str, value: str) -> JSON:
    return {"nodeSelector": {key: value}, "terminationGracePeriodSeconds": grace, "tolerations": TOLERATED}


LONGER = ", unless its pool gives up to 120 s"


@cases(
    ("spec", "want"),
    gke=(within(30, GKE, "true"), notice(30, "GKE", 15, LONGER)),
    gke_in_time=(within(15, GKE, "true"), []),
    gke_by_provisioning=(
        within(60, "cloud.google.com/gke-provisioning", "spot"),
        notice(60, "GKE", 15, LONGER),
    ),
    gke_on_demand=(within(60, "cloud.google.com/gke-provisioning", "standard"), []),
    eks=(within(300, EKS, "SPOT"), notice(300, "EC2", 120)),
    eks_in_time=(within(120, EKS, "SPOT"), []),
    eks_on_demand=(within(300, EKS, "ON_DEMAND"), []),
    karpenter=(within(121, KARPENTER, "spot"), notice(121, "EC2", 120)),
    aks=(within(31, AKS, "spot"), notice(31, "AKS", 30)),
    by_affinity=(
        {**affine(REQUIRED, KARPENTER, "In", "spot"), "terminationGracePeriodSeconds": 600},
        notice(600, "EC2", 120),
    ),
    spot_or_on_demand=(
        {**affine(REQUIRED, KARPENTER, "In", "spot", "on-demand"), "terminationGracePeriodSeconds": 600},
        [],
    ),
    only_preferred=({**affine(PREFERRED, KARPENTER, "In", "spot"), "terminationGracePeriodSeconds": 600}, []),
    the_default_of_kubernetes=({"nodeSelector": {GKE: "true"}}, []),
)
def test_the_grace_that_the_notice_allows(spec: JSON, want: list[str]) -> None:
    assert said(spec) == want


@cases(
    ("tolerations", "is_warned"),
    none=([], True),
    the_taint=(TOLERATED, False),
    any_taint=([{"operator": "Exists"}], False),
    another_taint=([{"key": "nvidia.com/gpu", "operator": "Exists"}], True),
)
def test_spot_nodes_of_aks_are_tainted(tolerations: list[JSON], is_warned: bool) -> None:
    assert said({"nodeSelector": {AKS: "spot"}, "tolerations": tolerations}) == is_warned * [
        "spec.tolerations: add {key: kubernetes.azure.com/scalesetpriority, operator: Equal, value: spot, effect: NoSchedule} to "
        "spec.tolerations; each spot node of AKS has this taint, so the pod stays pending"
    ]


SPOT: JSON = {"nodeSelector": {GKE: "true"}}
OUT = {"volumeMounts": [{"name": "out", "mountPath": "/out"}]}
LOST = "mount a PersistentVolumeClaim there; what is saved there is lost with the spot node"
NO_VOLUME = [f'spec.containers[0] (container "main") = "/out/run": {LOST}: no volume is mounted there']
EMPTY_DIR = f"{LOST}: volume out is an emptyDir"
CLAIM = {"name": "out", "persistentVolumeClaim": {"claimName": "a"}}


@cases(
    ("of_container", "volumes", "want"),
    no_volume=({"args": ["--output_dir", "/out/run"]}, [], NO_VOLUME),
    with_an_equals_sign=({"args": ["--checkpoint-dir=/out/run"]}, [], NO_VOLUME),
    in_a_script=({"command": ["sh", "-c", "python train.py --save_path '/out/run' --lr 1"]}, [], NO_VOLUME),
    of_megatron=({"args": ["--save", "/out/run"]}, [], NO_VOLUME),
    of_hydra=({"args": ["exp_manager.exp_dir=/out/run"]}, [], NO_VOLUME),
    of_lightning=({"args": ["--trainer.default_root_dir", "/out/run"]}, [], NO_VOLUME),
    of_a_variable=({"env": [{"name": "CHECKPOINT_DIR", "value": "/out/run"}]}, [], NO_VOLUME),
    an_empty_dir=(
        {"args": ["--output-dir", "/out/run"], **OUT},
        [{"name": "out", "emptyDir": {}}],
        [f'spec.containers[0] (container "main") = "/out/run": {EMPTY_DIR}'],
    ),
    a_claim=({"args": ["--output-dir", "/out/run"], **OUT}, [CLAIM], []),
    a_claim_of_its_stateful_set=({"args": ["--output-dir", "/out/run"], **OUT}, [], []),
    a_bucket=({"args": ["--output-dir", "gs://bucket/run"]}, [], []),
    a_flag_of_another_meaning=({"args": ["--save_steps", "/out/run", "--output_format", "/out"]}, [], []),
    checkpoints_by_name=(
        {"volumeMounts": [{"name": "out", "mountPath": "/checkpoints"}]},
        [{"name": "out", "emptyDir": {}}],
        [f'spec.containers[0] (container "main") = "/checkpoints": {EMPTY_DIR}'],
    ),
    a_training_without_any_volume=(
        {"args": ["torchrun", "train.py"]},
        [],
        [f'spec.containers[0] (container "main") = "/checkpoints": {LOST}: no volume is mounted there'],
    ),
    a_training_with_a_claim_somewhere=({"args": ["train.py"], **OUT}, [CLAIM], []),
    a_training_that_knows_a_bucket=({"args": ["train.py", "--to=s3://bucket/run"]}, [], []),
    no_training=({"args": ["all_reduce_perf", "-b", "8"]}, [], []),
)
def test_what_a_training_saves(of_container: JSON, volumes: list[JSON], want: list[str]) -> None:
    spec = {**SPOT, "volumes": volumes}

    assert said(spec, container(**of_container), is_training=True) == want
    assert said(spec, container(**of_container)) == [], "a server"
    assert said({"volumes": volumes}, container(**of_container), is_training=True) == [], "not on spot nodes"


def test_edits_are_json_whatever_the_volume_is_called() -> None:
    name = 'a", "hostPath": {"path": "/"}, "b": "'
    mounted = container(args=["--output_dir=/out/run"], volumeMounts=[{"name": name, "mountPath": "/out"}])
    document = pod(mounted, **SPOT, volumes=[{"name": name, "emptyDir": {}}])

    (found,) = spot_findings(view(document), is_training=True)

    volume = {"name": name, "persistentVolumeClaim": {"claimName": "checkpoints"}}
    assert [[as_plain_data(edit.value) for edit in edits] for edits in found.choices] == [[volume]]


def test_of_many_paths_three_are_named() -> None:
    paths = [f"--output_dir=/out/{number}" for number in range(100)]

    assert len(said(SPOT, container(args=paths), is_training=True)) == 3
