"""Pods for rule model-warming, and what the rule makes of them."""

from typing import Any

import msgspec

from policies.finding import Finding
from policies.pods.patch import PodPatch
from policies.rules.model_warming import ModelWarmingOptions, mutate
from tests.builders import JSON, apply, context, view

URI = "gpu-admission.dev/model-uri"
PATH = "gpu-admission.dev/model-path"
CLAIM = "gpu-admission.dev/model-cache-claim"
LLAMA = {URI: "s3://models/llama"}
FETCHER = "gpu-admission-fetch-model"


def options(**fields: Any) -> ModelWarmingOptions:
    return msgspec.convert(fields, ModelWarmingOptions)


def run(document: JSON, settings: ModelWarmingOptions | None = None) -> tuple[JSON, list[Finding]]:
    """Return the pod as the rule leaves it and what the rule says; a second pass must add and say the same or nothing."""
    settings = settings or ModelWarmingOptions()
    patch = PodPatch(view(document))
    findings = list(mutate(patch, settings, context()))
    after = apply(document, patch)
    again = PodPatch(view(after))
    assert list(mutate(again, settings, context())) == findings
    assert again.changes == []
    return after, findings


def fetcher(document: JSON) -> JSON:
    found: list[JSON] = [one for one in document["spec"]["initContainers"] if one["name"] == FETCHER]
    assert len(found) == 1
    return found[0]


def env(document: JSON) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in fetcher(document)["env"]}


def destination(document: JSON) -> str:
    found: str = fetcher(document)["args"][1]
    return found
