"""Sizes of workloads as `rightsize -o json` and `scan -o json` print them."""

from fractions import Fraction
from typing import Any

from webhook.tools.prices import Prices, money
from webhook.tools.rightsize.sizing import Size, Suggestion
from webhook.tools.rightsize.workloads import SizedWorkload, SizeReport


def sizes_document(report: SizeReport, prices: Prices | None = None) -> dict[str, Any]:
    """Return the document. Hours and GiB are numbers, money is text."""
    return {
        "windowHours": report.hours,
        "byHour": report.by_hour,
        **({"currency": prices.currency, "saved": money(report.saved_cents)} if prices else {}),
        "savedGPUHours": float(report.saved_gpu_hours),
        "workloads": [_workload_document(workload) for workload in report.workloads],
        "fitting": report.fitting,
        "notJudged": report.unjudged,
        "omitted": report.omitted,
    }


def _workload_document(workload: SizedWorkload) -> dict[str, Any]:
    return {
        "namespace": workload.namespace,
        "owner": workload.owner,
        "pods": workload.pods,
        **_size_document(workload.size),
        "peakMemoryGiB": _json_number(workload.peaks.memory_gib),
        "peakUse": _json_number(workload.peaks.use),
        "gpuHours": _json_number(workload.gpu_hours),
        "idle": workload.peaks.are_idle,
        "suggestions": [_suggestion_document(suggestion) for suggestion in workload.suggestions],
    }


def _suggestion_document(suggestion: Suggestion) -> dict[str, Any]:
    return {
        **_size_document(suggestion.size),
        "because": suggestion.because,
        "remark": suggestion.remark,
        "gpuHours": _json_number(suggestion.gpu_hours),
        "savedGPUHours": _json_number(suggestion.saved_gpu_hours),
        **({} if suggestion.saved_cents is None else {"saved": money(suggestion.saved_cents)}),
    }


def _size_document(size: Size) -> dict[str, Any]:
    return {"class": size.gpu_class, "resource": size.resource, "gpus": size.gpus}


def _json_number(value: Fraction) -> float:
    return round(float(value), 3)
