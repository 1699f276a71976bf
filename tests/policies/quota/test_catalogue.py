"""The catalogue as a document: what one process publishes charges alike in another one, under the same digest."""

from collections.abc import Callable
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.gpus.classes import GPUClass, GPUClasses, HostShare, MigProfile, NodeLabel
from policies.gpus.mapping_spec import (
    AnnotationKey,
    DeviceClassPattern,
    Measure,
    ResourceMappingSpec,
    ResourcePattern,
)
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Toleration
from policies.quota.catalogue import (
    CatalogueError,
    CatalogueVersion,
    PublishedCatalogue,
    catalogue_digest,
    read_catalogue,
    write_catalogue,
)
from policies.quota.demand import Catalogue, UnclassifiedPods, pod_demand
from tests.builders import JSON, view
from tests.cases import cases
from tests.policies.quota.charging import CLASSES, RESOURCE_MAPPING
from tests.strategies import PODS
from webhook.configuration.loader import load_directory

TEXT = st.text(max_size=12)
SHARES = st.sampled_from(["1/4", "0.25", "1"])
PROFILES = st.builds(
    MigProfile, sevenths=st.integers(1, 7), memory_gib=st.integers(1, 80), per_gpu=st.integers(1, 7)
)
GENERATED_CLASSES = st.builds(
    GPUClass,
    name=TEXT,
    memory_gib=st.integers(1, 200),
    family=TEXT,
    resource=st.sampled_from(["nvidia.com/gpu", "amd.com/gpu"]),
    tolerations=st.lists(st.builds(Toleration, key=TEXT), max_size=1).map(tuple),
    node_labels=st.lists(st.builds(NodeLabel, key=TEXT, values=st.tuples(TEXT)), max_size=2).map(tuple),
    mig_profiles=st.dictionaries(st.sampled_from(["1g.10gb", "1g.10gb+me"]), PROFILES, max_size=2),
    equivalents=st.dictionaries(st.sampled_from(["nvidia.com/gpu", "example.com/slot"]), SHARES, max_size=2),
    device_classes=st.lists(TEXT, max_size=2).map(tuple),
)
GENERATED_SPECS = st.builds(
    ResourceMappingSpec,
    resources=st.lists(
        st.builds(ResourcePattern, pattern=TEXT, measure=st.sampled_from(Measure)), max_size=3
    ).map(tuple),
    fraction_annotations=st.lists(
        st.builds(AnnotationKey, key=TEXT, measure=st.sampled_from(Measure)), max_size=2
    ).map(tuple),
    device_classes=st.lists(
        st.builds(DeviceClassPattern, pattern=TEXT, resource=st.none() | TEXT), max_size=2
    ).map(tuple),
)
GENERATED = st.builds(
    lambda classes, specs: PublishedCatalogue(GPUClasses(classes), ResourceMapping(specs)),
    st.lists(GENERATED_CLASSES, max_size=3),
    st.lists(GENERATED_SPECS, max_size=3),
)
OURS = PublishedCatalogue(CLASSES, RESOURCE_MAPPING)


def published(catalogue: Catalogue) -> PublishedCatalogue:
    return read_catalogue(catalogue_digest(catalogue), write_catalogue(catalogue))


@given(GENERATED)
def test_every_catalogue_can_be_published(catalogue: PublishedCatalogue) -> None:
    read = published(catalogue)

    assert catalogue_digest(read) == catalogue_digest(catalogue)
    assert list(read.classes) == list(catalogue.classes)
    assert read.resource_mapping.patterns == catalogue.resource_mapping.patterns


@given(PODS, st.sampled_from(UnclassifiedPods))
def test_a_published_catalogue_counts_alike(document: JSON, mode: UnclassifiedPods) -> None:
    def counted(by: Catalogue) -> object:
        return pod_demand(view(document), by, mode)

    assert counted(published(OURS)) == counted(OURS)


def test_an_older_release_can_read_what_no_demand_depends_on_left_out() -> None:
    built_in = load_directory(None)
    published = msgspec.json.decode(write_catalogue(built_in))

    assert any(gpu_class.gpus_per_node for gpu_class in built_in.classes)
    assert not any("gpusPerNode" in gpu_class for gpu_class in published["classes"])
    shared = GPUClasses([replace(each, per_gpu=HostShare(cpu="12")) for each in CLASSES])
    assert write_catalogue(PublishedCatalogue(shared, RESOURCE_MAPPING)) == write_catalogue(OURS)
    specs = published["resourceMappings"]
    lists = [spec.get(name, []) for spec in specs for name in ("resources", "fractionAnnotations")]
    assert {key for entries in lists for each in entries for key in each} == {"pattern", "key", "measure"}


def test_the_digest_covers_classes_and_vocabulary() -> None:
    digest = catalogue_digest(OURS)

    backwards = GPUClasses(reversed(list(CLASSES)))
    assert digest == catalogue_digest(PublishedCatalogue(backwards, RESOURCE_MAPPING))
    assert digest != catalogue_digest(PublishedCatalogue(GPUClasses(()), RESOURCE_MAPPING))
    assert digest != catalogue_digest(PublishedCatalogue(CLASSES, ResourceMapping(())))


@cases(
    ("change", "said"),
    altered=(
        lambda text: text.replace('"memoryGiB":16', '"memoryGiB":17'),
        "^catalogue [0-9a-f]{16} has the content of [0-9a-f]{16}$",
    ),
    cut=(lambda text: text[:-9], "^catalogue [0-9a-f]{16} cannot be read: "),
    empty=(lambda _: "", "^catalogue [0-9a-f]{16} cannot be read: "),
)
def test_what_is_not_of_that_digest_is_not_believed(change: Callable[[str], str], said: str) -> None:
    with pytest.raises(CatalogueError, match=said):
        read_catalogue(catalogue_digest(OURS), change(write_catalogue(OURS)))


def test_a_field_of_a_later_release_is_not_passed_over() -> None:
    text = write_catalogue(OURS).replace('"memoryGiB":16', '"bandwidth":3,"memoryGiB":16')
    parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw]).values()
    digest = "".join(sha256(part).hexdigest()[:8] for part in parts)

    with pytest.raises(CatalogueError, match="unknown field `bandwidth`"):
        read_catalogue(digest, text)


def test_a_catalogue_version_reads_what_it_wrote() -> None:
    for each in (CatalogueVersion(catalogue_digest(OURS), unclassified) for unclassified in UnclassifiedPods):
        assert CatalogueVersion.parse(str(each)) == each


@pytest.mark.parametrize("text", ["", "0123456789abcdef", "0123456789abcdef/Later"])
def test_a_catalogue_version_of_another_release_is_none(text: str) -> None:
    assert CatalogueVersion.parse(text) is None
