"""What the CustomResourceDefinitions of workload kinds have: containers, pods, resources, and numbers of GPUs and of pods.

The paths of a source that is Go are written by hand.
`python -m tests.webhook.workloads.kind_facts ROOT` writes the paths in kind-facts.yaml again, of the commits that stand there.
ROOT has the repositories as OWNER+NAME/repo. A source that is not there keeps its paths.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

FACTS = Path(__file__).with_name("kind-facts.yaml")

_POD = {"containers", "nodeSelector", "tolerations"}
_OF_A_POD = re.compile(
    r"activeDeadlineSeconds|affinity|automountServiceAccountToken|containers|dns(Config|Policy)|enableServiceLinks|"
    r"ephemeralContainers|host(Aliases|IPC|Network|PID|Users|name|nameOverride)|imagePullSecrets|initContainers|node(Name|Selector)|os|"
    r"overhead|resources|preemptionPolicy|priority(ClassName)?|readinessGates|resourceClaims|restartPolicy|runtimeClassName|schedul\w+|"
    r"securityContext|serviceAccount(Name)?|setHostnameAsFQDN|shareProcessNamespace|subdomain|terminationGracePeriodSeconds|"
    r"tolerations|topologySpreadConstraints|volumes"
)
"""Fields of a PodSpec, in which no other pods are."""
_OF_A_CONTAINER = re.compile(
    r"args|command|env|envFrom|image|imagePullPolicy|lifecycle|livenessProbe|name|ports|readinessProbe|resizePolicy|restartPolicy\w*|"
    r"securityContext|startupProbe|stdin|stdinOnce|terminationMessage\w+|tty|volumeDevices|volumeMounts|workingDir"
)
_ELSEWHERE = {
    *(
        "status",
        "volumes",
        "volumeClaimTemplates",
        "volumeClaimTemplate",
        "volumeSource",
        "env",
        "envFrom",
        "affinity",
    ),
    *("securityContext", "params", "results", "matrix"),
}
"""Fields of which no member asks for GPUs or pods."""
_GPUS = re.compile(
    r"(num|n|number_?of)?[-_]?(v?gpus?|accelerators?)[-_]?(count|num|number|per\w+)?", re.IGNORECASE
)
_PODS = re.compile(
    r"((min|max|initial|desired|num)?[-_]?(replicas|nodes|workers|instances|executors|hosts))|num(nodes|workers|ofhosts)|"
    r"(replica|node|worker|instance|pod)s?(count|num|number|groupsize)|(parallel\w*size|parallelism|completions|groupsize|size)",
    re.IGNORECASE,
)
_NAMES = re.compile(
    r"\w*[rR]ef(erence)?s?|runtime|instance[tT]ype|serverConfig|(\w*(Template|Runtime|Model|Task|Pipeline|Workload)|template|model)Name"
)
"""Fields that may name another object with pods."""
_NAMES_OF_OTHERS = re.compile(
    r"\w*([sS]ecret|Claim|[gG]ateway|VirtualNode)\w*|configMapKeyRef|(dataSource|authentication|plugin|extension|resource|filter)Ref|"
    r"(parent|backend)Refs?|ownerReferences|ref"
)
"""Fields that name secrets, addresses and plugins."""
_COUNT_BELOW_GPUS = re.compile(r"count|quantity|limit|number", re.IGNORECASE)

Schema = dict[str, Any]


def places(schema: Schema, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield each path with its shape: template, podSpec, container, resources, amounts, gpus, pods, names or opaque."""
    shape = _shape(schema) or _number(schema, at) or _name(schema, at)
    if shape:
        yield at, shape
    properties: Schema = schema.get("properties") or {}
    if shape in _WHOLE or {"accessModes", "storageClassName"} <= set(properties):
        return
    for name, member in properties.items():
        if name not in _ELSEWHERE and not _is_standard(shape, name, member):
            yield from places(member, f"{at}.{_key(name)}".lstrip("."))
    additional, items = schema.get("additionalProperties"), schema.get("items")
    if isinstance(additional, dict):
        yield from places(additional, f"{at}.*")
    if isinstance(items, dict):
        yield from places(items, f"{at}[]")


_WHOLE = {"opaque", "resources", "amounts", "template", "names"}
"""Shapes of which nothing below is of interest."""


def _shape(schema: Schema) -> str:
    properties: Schema = schema.get("properties") or {}
    names = set(properties)
    if schema.get("x-kubernetes-preserve-unknown-fields") and not properties:
        return "opaque"
    if _are_resources(schema):
        return "resources"
    if _is_amounts(schema):
        return "amounts"
    if names >= {"metadata", "spec"} and set(properties["spec"].get("properties") or {}) >= _POD:
        return "template"
    if names >= _POD:
        return "podSpec"
    return "container" if names >= {"image", "env"} and any(map(_are_resources, properties.values())) else ""


def _is_standard(shape: str, name: str, member: Schema) -> bool:
    """Whether it is a field of every pod, or of every container."""
    if shape == "container":
        return _are_resources(member) or _OF_A_CONTAINER.fullmatch(name) is not None
    return shape == "podSpec" and _OF_A_POD.fullmatch(name) is not None


def _are_resources(schema: Schema) -> bool:
    """Whether it has limits and requests, each a map."""
    members = [(schema.get("properties") or {}).get(each) for each in ("limits", "requests")]
    return all(each and each.get("additionalProperties") for each in members)


def _number(schema: Schema, at: str) -> str:
    is_number = schema.get("type") in {"integer", "number"} or schema.get("x-kubernetes-int-or-string")
    *_, parent, name = ("", *at.split("."))
    is_text = schema.get("type") == "string" and "gpu" in name.lower()
    if _GPUS.fullmatch(name) and (is_number or is_text):
        return "gpus"
    if is_number and _COUNT_BELOW_GPUS.fullmatch(name) and _GPUS.fullmatch(parent.removesuffix("[]")):
        return "gpus"
    is_count = schema.get("type") == "integer" or "replicas" in name.lower()
    return "pods" if is_number and is_count and _PODS.fullmatch(name) else ""


def _name(schema: Schema, at: str) -> str:
    name = at.rpartition(".")[2].removesuffix("[]")
    is_name = schema.get("type") == "string" or "name" in (schema.get("properties") or {})
    is_of_pods = _NAMES.fullmatch(name) and not _NAMES_OF_OTHERS.fullmatch(name)
    return "names" if is_name and is_of_pods else ""


def _is_amounts(schema: Schema) -> bool:
    """Whether it is a map of quantities."""
    values = schema.get("additionalProperties")
    return isinstance(values, dict) and bool(values.get("x-kubernetes-int-or-string"))


def _key(name: str) -> str:
    return f"[{name}]" if "." in name or "/" in name else name


def facts_of(text: str, kind: str) -> dict[str, str]:
    """Return the paths of all versions of one CustomResourceDefinition in a YAML text, with their shapes."""
    found: dict[str, str] = {}
    for document in yaml.load_all(_without_templates(text), yaml.CSafeLoader):
        if not isinstance(document, dict) or document.get("kind") != "CustomResourceDefinition":
            continue
        spec = document["spec"]
        if f"{spec['names']['kind']}.{spec['group']}" == kind:
            for version in spec["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                if not schema.get("properties"):
                    found["spec"] = "opaque"
                for name, member in (schema.get("properties") or {}).items():
                    if name not in {"apiVersion", "kind", "metadata", "status"}:
                        found |= dict(places(member, name))
    return dict(sorted(found.items()))


def _without_templates(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "{{" not in line or ":" in line.split("{{")[0])


def main(root: Path) -> None:
    rows = yaml.safe_load(FACTS.read_text())
    for row in rows:
        repository = root / row["repository"].replace("/", "+") / "repo"
        if not repository.exists():
            continue
        show = ["git", "-C", str(repository), "show", f"{row['commit']}:{row['file']}"]
        text = subprocess.run(show, check=True, capture_output=True).stdout
        row["digest"] = f"sha256:{sha256(text).hexdigest()}"
        if not row["file"].endswith(".go"):
            row["paths"] = facts_of(text.decode(), row["kind"])
    FACTS.write_text(yaml.safe_dump(rows, sort_keys=False, width=140))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
