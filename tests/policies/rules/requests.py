"""Containers for rule gpu-requests, and what the rule says of them."""

from typing import Any

from policies.finding import Finding
from policies.rule import Phase
from policies.rules.gpu_requests import GPURequestsOptions, check
from tests.builders import JSON, context, view

GPU = "nvidia.com/gpu"


def findings(
    document: JSON, options: GPURequestsOptions | None = None, phase: Phase = Phase.VALIDATE
) -> list[Finding]:
    return list(check(view(document), options or GPURequestsOptions(), context(phase)))


def sentences(document: JSON, options: GPURequestsOptions | None = None) -> list[str]:
    return [finding.sentence() for finding in findings(document, options)]


def resources(limit: Any, request: Any, resource: str = GPU) -> JSON:
    return {"resources": {"limits": {resource: limit}, "requests": {resource: request}}}
