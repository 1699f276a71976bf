"""The schemas of GPUPolicy, GPUClass and GPUResourceMapping take every document that we take, and lose nothing of it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from policies.gpus.mapping_spec import Measure
from tests.cases import cases
from tests.cluster.configuration import KINDS, install_configuration_kinds
from tests.controlplane.client import Client, accepted
from tests.controlplane.plane import ControlPlane
from webhook.configuration.documents import (
    API_VERSION,
    Document,
    DocumentLocation,
    DocumentSet,
    read_document,
)
from webhook.configuration.yaml_documents import YamlDocument, load_documents

ROOT = Path(__file__).parents[2]
FILES = sorted(
    [*(ROOT / "examples").glob("policies*/*.yaml"), *(ROOT / "webhook/configuration/builtin").glob("*.yaml")]
)
STRICT = {"dryRun": "All", "fieldValidation": "Strict"}
JSON = dict[str, Any]


@pytest.fixture(scope="module")
def client(plane: ControlPlane) -> Client:
    install_configuration_kinds(plane)
    return plane.client()


def read(document: JSON) -> DocumentSet:
    collected = DocumentSet()
    read_document(DocumentLocation("", document), collected)
    return collected


def meaning(document: JSON) -> Any:
    """Return what we understand, with the digest of a policy, so with every null and every number as it is written."""
    collected = read(document)
    assert not collected.problems
    return collected.policies, collected.classes, collected.resource_mappings


def stored(client: Client, document: JSON) -> JSON:
    """Return what the API server makes of a document."""
    answer = accepted(client.post(f"/apis/{API_VERSION}/{KINDS[document['kind']]}", document, STRICT))
    return Document(document["kind"], answer["metadata"]["name"], answer["spec"]).data


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_documents_that_we_ship_are_taken_as_they_are(client: Client, file: Path) -> None:
    documents = [each for each in load_documents(file.read_text()) if isinstance(each, YamlDocument)]
    assert documents
    for document in documents:
        assert meaning(stored(client, document.data)) == meaning(document.data)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[JSON]:
    """Return objects in which each field is there or left out."""
    return st.fixed_dictionaries({}, optional=fields)


def few(items: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, min_size=least, max_size=3)


WORDS = st.sampled_from(
    ["a", "ml-*", "*", "team-?", "8", "true", "off", "nvidia.com/gpu", "1/4", "0.25", "50%", "16Gi"]
)
WHOLE = st.sampled_from([0, 1, 2, 7, 8, 8.0, 60, 86400])
MODES = st.sampled_from(["enforce", "warn", "audit", "disabled"])
OPTIONAL_WORDS = st.one_of(WORDS, st.none())
OPTIONAL_NUMBERS = st.one_of(WHOLE, st.none())
SELECTORS = st.one_of(
    st.none(),
    some(
        matchLabels=st.dictionaries(st.sampled_from(["team", "example.com/tier"]), st.sampled_from(["a", ""]), max_size=2),
        matchExpressions=few(
            some(
                key=st.sampled_from(["team", "example.com/tier"]),
                operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
                values=few(st.sampled_from(["a", "b"])),
            )
        ),
    ),
)  # fmt: skip
TOLERATIONS = few(
    some(
        key=st.sampled_from(["nvidia.com/gpu", "dedicated", None]),
        operator=st.sampled_from(["Exists", "Equal", "", None]),
        value=st.sampled_from(["ml", "", None]),
        effect=st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute", "", None]),
        tolerationSeconds=OPTIONAL_NUMBERS,
    )
)
SOURCES = some(
    image=st.sampled_from(["fetcher:1", "example.com/a/b@sha256:00", None]),
    endpoint=st.sampled_from(["https://hub.example.com", None]),
    hosts=few(st.sampled_from(["models.example.com", "models.example.com:8443"])),
    credentialsSecret=st.sampled_from(["model-keys", None]),
    credentialsKey=st.sampled_from(["key.json"]),
    env=st.dictionaries(st.sampled_from(["AWS_REGION", "HTTPS_PROXY"]), WORDS, max_size=2),
)
LIMITS = OPTIONAL_NUMBERS | st.dictionaries(
    st.sampled_from(["nvidia.com/mig-*", "nvidia-t4", "*"]), WHOLE, max_size=2
)
RULES = some(
    **{
        "gpu-requests": some(
            mode=MODES,
            maxPerContainer=LIMITS,
            maxPerPod=LIMITS,
            completeLimits=st.booleans(),
            gpusPerNode=WHOLE,
            knownProfilesOnly=st.booleans(),
        ),
        "ineffective-fields": some(mode=MODES),
        "gpu-class": some(mode=MODES, labelKey=st.just("accelerator"), default=OPTIONAL_WORDS, allowed=few(WORDS)),
        "gpu-toleration": some(
            mode=MODES,
            tolerations=TOLERATIONS,
            byVendor=st.dictionaries(st.sampled_from(["nvidia.com", "amd.com"]), TOLERATIONS, max_size=2),
        ),
        "readiness-delay": some(
            mode=MODES,
            strategy=st.sampled_from(["initialDelay", "startupProbe"]),
            modelLoadSeconds=OPTIONAL_NUMBERS,
            loadMiBPerSecond=WHOLE,
            buffer=st.sampled_from([0, 0.2, 1.0, 10]),
        ),
        "shared-memory": some(mode=MODES, sizeLimit=WORDS | st.just(2**30)),
        "parallelism": some(mode=MODES),
        "model-warming": some(
            mode=MODES,
            mountPath=st.sampled_from(["/model-cache", "/a/b"]),
            cacheSizeLimit=WORDS | st.just(2**40),
            runAsUser=OPTIONAL_NUMBERS,
            resources=some(cpu=st.sampled_from(["1", "500m", 2]), memory=WORDS | st.just(2**31)),
            sources=some(s3=SOURCES, gs=SOURCES, hf=SOURCES, https=SOURCES, pvc=SOURCES),
        ),
        "gpu-isolation": some(mode=MODES),
        "gpu-quota": some(mode=MODES, required=st.booleans(), onLedgerError=st.sampled_from(["deny", "allow"])),
    }
)  # fmt: skip
EXEMPTIONS = st.fixed_dictionaries(
    {"namespaces": few(WORDS, 1), "reason": WORDS},
    optional={
        "rules": st.one_of(st.none(), few(st.sampled_from(["gpu-class", "gpu-quota"]))),
        "until": st.sampled_from([None, "2027-01-31"]),
        "namespaceSelector": SELECTORS,
    },
)
MOMENTS = st.sampled_from(
    [None, "2027-01-31T18:00:00Z", "2027-01-31 18:00:00.5+01:00", "2027-01-31t18:00:00z", "2027-01-31T18:00:00-0330"]
)  # fmt: skip
POLICIES = some(
    priority=st.integers(-(2**31), 2**31),
    match=some(namespaces=few(WORDS, 1), namespaceSelector=SELECTORS),
    pausedUntil=MOMENTS,
    templates=st.sampled_from(["warn", "enforce"]),
    help=st.sampled_from(["", "#gpu-support", "https://wiki.example.com/gpu"]),
    exemptions=few(EXEMPTIONS),
    rules=RULES,
)
PROFILE = st.fixed_dictionaries(
    {"sevenths": st.integers(1, 7), "memoryGiB": st.sampled_from([5, 10]), "perGPU": st.integers(1, 7)},
    optional={"weight": st.sampled_from(["1/4", 1, None])},
)
CLASSES = st.fixed_dictionaries(
    {"memoryGiB": st.sampled_from([16, 80, 80.0])},
    optional={
        "family": st.sampled_from(["", "nvidia-a100"]),
        "resource": st.just("nvidia.com/gpu"),
        "gpusPerNode": OPTIONAL_NUMBERS,
        "nodeLabels": few(
            st.fixed_dictionaries({"key": WORDS, "values": few(st.sampled_from(["a", "b"]), 1)})
        ),
        "tolerations": TOLERATIONS,
        "migProfiles": st.dictionaries(
            st.sampled_from(["1g.10gb", "1g.5gb", "2g.10gb"]), PROFILE, max_size=2
        ),
        "equivalents": st.dictionaries(
            st.just("nvidia.com/gpu"), st.sampled_from(["1/4", "1", 1]), max_size=1
        ),
        "deviceClasses": few(st.sampled_from(["gpu.nvidia.com", "big"])),
    },
)
MEASURES = st.sampled_from([measure.value for measure in Measure])
RESOURCE_MAPPINGS = some(
    resources=few(
        st.fixed_dictionaries(
            {"pattern": st.just("example.com/*"), "measure": MEASURES},
            optional={"resource": st.sampled_from(["example.com/npu", None])},
        )
    ),
    fractionAnnotations=few(
        st.fixed_dictionaries(
            {"key": WORDS, "measure": MEASURES}, optional={"resource": st.just("example.com/npu")}
        )
    ),
    fractionSchedulers=few(st.sampled_from(["kai-scheduler", "volcano"])),
    otherSchedulers=few(
        st.fixed_dictionaries({"schedulerName": st.just("x"), "annotationPrefixes": st.just(["example.com/"])})
    ),
    deviceClasses=few(
        st.fixed_dictionaries(
            {"pattern": st.just("*.example.com")}, optional={"resource": st.sampled_from(["example.com/npu", None])}
        )
    ),
)  # fmt: skip
SPECS = {"GPUPolicy": POLICIES, "GPUClass": CLASSES, "GPUResourceMapping": RESOURCE_MAPPINGS}
DOCUMENTS = st.sampled_from(list(SPECS)).flatmap(
    lambda kind: SPECS[kind].map(lambda spec: Document(kind, "some", spec).data)
)


@settings(
    max_examples=3 * settings().max_examples,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(DOCUMENTS.filter(lambda document: not read(document).problems))
@example(
    Document(
        "GPUClass", "some", {"memoryGiB": 16, "tolerations": [{"key": "nvidia.com/gpu", "operator": None}]}
    ).data
)
def test_whatever_we_take_the_schema_takes_and_keeps(client: Client, document: JSON) -> None:
    assert meaning(stored(client, document)) == meaning(whole_numbers(document))


def whole_numbers(value: Any) -> Any:
    """Return plain data with 1 for 1.0, as the API server writes it."""
    if isinstance(value, dict):
        return {key: whole_numbers(member) for key, member in value.items()}
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@cases(
    ("kind", "spec", "want"),
    mode_off_is_false_to_yaml=("GPUPolicy",
        {"rules": {"gpu-class": {"mode": False}}},
        [
            'spec.rules.gpu-class.mode: Unsupported value: false: supported values: "enforce", "warn", "audit", "disabled"'
        ]),
    unknown_fields_are_left_to_our_review=("GPUPolicy",
        {"prio": 1, "rules": {"gpu-clas": {}}, "templates": "audit"},
        ['spec.templates: Unsupported value: "audit"']),
    all_of_several=("GPUPolicy",
        {"pausedUntil": "tomorrow", "exemptions": [{"namespaces": ["a"]}], "templates": "audit"},
        [
            'spec.pausedUntil: Invalid value: "tomorrow"',
            "spec.exemptions[0].reason: Required value",
            'spec.templates: Unsupported value: "audit"',
        ]),
    help_of_two_lines=("GPUPolicy", {"help": "a\nb"}, ["must be one line of at most 256 characters"]),
    long_help=("GPUPolicy", {"help": "a" * 257}, ["spec.help: Too long: may not be more than 256"]),
    text_for_a_number=("GPUClass", {"memoryGiB": "80"}, ["spec.memoryGiB", "must be of type integer"]),
    missing=("GPUResourceMapping", {"resources": [{"pattern": "a/b"}]}, ["measure: Required value"]),
)  # fmt: skip
def test_what_the_schema_refuses(client: Client, kind: str, spec: JSON, want: list[str]) -> None:
    status, answer = client.post(
        f"/apis/{API_VERSION}/{KINDS[kind]}", Document(kind, "some", spec).data, STRICT
    )
    assert status in {400, 422}
    for text in want:
        assert text in answer["message"]


def test_the_name_of_a_class_is_a_label_value(client: Client) -> None:
    document = Document("GPUClass", "a" * 64, {"memoryGiB": 1}).data
    status, answer = client.post(f"/apis/{API_VERSION}/gpuclasses", document, STRICT)
    assert status == 422
    assert "at most 63 characters" in answer["message"]
