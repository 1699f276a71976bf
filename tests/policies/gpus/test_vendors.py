"""The table of vendors is valid, and the only place that knows them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.gpus.mapping_spec import Measure
from policies.gpus.resource_mapping import ResourceMapping
from policies.gpus.vendor import Vendor
from policies.gpus.vendors import RESOURCE_MAPPING, VENDORS, from_all_vendors

ROOT = Path(__file__).parents[3]
BUILT_IN = ResourceMapping((RESOURCE_MAPPING,))
OF_ONE_VENDOR = {
    "policies/gpus/vendors.py": "the table",
    "policies/gpus/mapping_spec.py": "the cards that are meant where nothing says which",
    "policies/gpus/near_names.py": "a name that Kubernetes itself once had",
    "policies/placement/hardware.py": "annotations of HAMi",
    "policies/rules/cuda_version.py": "a rule about NVIDIA's driver",
}


def literals(file: Path) -> Iterator[str]:
    """Yield the texts of the code, but for docstrings."""
    tree = ast.parse(file.read_text())
    alone = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in alone:
            yield each.value


def own_words() -> re.Pattern[str]:
    domains = {each.pattern.partition("/")[0] for each in RESOURCE_MAPPING.resources}
    paths = {path for path in from_all_vendors(lambda vendor: vendor.node_paths) if path != "/dev/dri/"}
    variables = from_all_vendors(lambda vendor: vendor.visible_devices)
    words = (f"{domain}/" for domain in domains)
    return re.compile("|".join(map(re.escape, sorted({*words, *paths, *variables}))))


def test_no_other_module_knows_a_vendor() -> None:
    """What a rule or command needs to know of a vendor is a field of the table."""
    known = own_words()
    found = {
        f"{name}: {text}"
        for room in ("policies", "webhook", "certs")
        for file in (ROOT / room).rglob("*.py")
        if (name := str(file.relative_to(ROOT))) not in OF_ONE_VENDOR
        for text in literals(file)
        if known.match(text)
    }

    assert not found, "\n".join(("move these to policies/gpus/vendors.py:", *sorted(found)))


@pytest.mark.parametrize("vendor", [pytest.param(each, id=each.resources[0].pattern) for each in VENDORS])
def test_no_name_of_a_vendor_is_hidden_by_one_before_it(vendor: Vendor) -> None:
    for each in vendor.resources:
        found = BUILT_IN.resource(each.pattern.replace("*", "x1"))

        assert (found and found.measure) == (None if each.measure is Measure.NOTHING else each.measure)
    for card in vendor.one_device_each:
        assert card in BUILT_IN.whole_card_resources


def test_the_table_is_a_valid_mapping() -> None:
    assert list(RESOURCE_MAPPING.problems()) == []
    assert not any(set(vendor.hiding_values) - {"", "none", "void"} for vendor in VENDORS)
