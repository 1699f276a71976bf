"""References between documents: names of classes and resources, and paths into objects of other kinds."""

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import chain

from policies.gpus.classes import GPUClasses
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.field_paths import value_at
from policies.quota.spec import LimitsSpec, QuotaSpec
from webhook.configuration.decoding import Problem
from webhook.configuration.documents import (
    CLASS,
    QUOTA,
    RESOURCE_MAPPING,
    TEAM,
    DocumentLocation,
    DocumentSet,
    below,
)
from webhook.configuration.schema_paths import kind_problems

_TEXT = re.compile(r'"([^"]*)"')


def check_references(
    collected: DocumentSet, gpu_classes: GPUClasses, resource_mapping: ResourceMapping
) -> None:
    """Check the names of classes and resources, and paths into objects of other kinds, once all documents have been read."""
    known = {(each.file, each.line, each.path) for each in collected.problems}
    for place, at, options in collected.references:
        for problem in below(at, options.class_problems(gpu_classes)):
            located = place.problem(problem)
            is_known = (located.file, located.line, located.path) in known
            if not is_known and not _may_be_defined(problem, place, CLASS, collected):
                collected.problems.append(located)
    for name, kinds in collected.workload_kinds.items():
        place = collected.places[RESOURCE_MAPPING, name]
        wrong = below((), kind_problems(kinds, collected.schemas))
        collected.problems.extend(place.problem(problem) for problem in wrong)
    limits: Iterator[tuple[tuple[str, str], LimitsSpec]] = chain(
        (((QUOTA, namespace), spec) for namespace, spec in collected.quotas.items()),
        (((TEAM, name), spec) for name, spec in collected.teams.items()),
    )
    for key, spec in limits:
        place = collected.places[key]
        collected.problems.extend(
            place.problem(problem)
            for problem, kind in quota_problems(spec, gpu_classes, resource_mapping)
            if not _may_be_defined(problem, place, kind, collected)
        )


def _may_be_defined(problem: Problem, place: DocumentLocation, kind: str, collected: DocumentSet) -> bool:
    """Whether an invalid document of the kind may define the name or glob that the problem calls unknown."""
    unread = collected.unreadable.get(kind)
    if not unread or kind != CLASS:  # a pattern of a resource mapping may define any name
        return bool(unread)
    named = (str(problem.parts[-1]), str(value_at(place.data, problem.parts)))
    # A key of YAML may be null, or a date, which JSON does not have.
    texts = set(_TEXT.findall(json.dumps(unread, default=str, skipkeys=True)))
    return any(fnmatchcase(text, name) for text in texts for name in named)


def quota_problems(
    spec: LimitsSpec, gpu_classes: GPUClasses, resource_mapping: ResourceMapping
) -> Iterator[tuple[Problem, str]]:
    """Yield the limits that can never count anything, each with the kind of document that would define its name."""
    of_budget = spec.budget.by_class if isinstance(spec, QuotaSpec) and spec.budget else ()
    for at, names in ((("hard", "classes"), spec.hard.classes), (("budget", "byClass"), of_budget)):
        for name in names:
            if not gpu_classes.resolve(name):
                message = f"must be a GPU class or family{gpu_classes.suggestion(name, '; ')}"
                yield Problem(("spec", *at, name), message), CLASS
    for name in spec.hard.resources:
        if resource_mapping.resource(name) is None:
            message = "must be a GPU resource: nothing else counts for a quota"
            yield Problem(("spec", "hard", "resources", name), message), RESOURCE_MAPPING
