"""`gpu-admission estimate`: the GPU memory that a model needs, and the built-in classes that have it."""

import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any

import click
import msgspec

from policies.gpus.classes import GPUClasses
from policies.models import estimate as estimates
from policies.models import shapes
from policies.models.estimate import ClassFit, Estimate
from policies.models.shapes import Attention, EstimateError, ModelPhase, ModelShape, Precision, parse_family
from webhook.commands.options import F, Parsed, output_option
from webhook.commands.output import STRUCTURED, echo, print_value
from webhook.configuration.loader import load_directory

LONGEST_CONFIG = 2**20
"""Bytes of a config.json: real ones have a few thousand."""


def _option(
    name: str, metavar: str, parse: Callable[[str], Any], meaning: str, **more: Any
) -> Callable[[F], F]:
    """Return an option with a parser of `policies.models.shapes`."""
    return click.option(name, type=Parsed(metavar, parse), help=meaning, **more)


def _count_option(name: str, what: str, meaning: str, default: str) -> Callable[[F], F]:
    """Return an option for a whole number; `what` names it in errors."""
    return _option(name, "NUMBER", partial(shapes.parse_count, what=what), meaning, default=default)


def _choices_text(values: type[Enum]) -> str:
    return "|".join(value.value for value in values).upper()


def _attention_of_config(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> Attention | None:
    if value is None:
        return None
    try:
        with click.File("rb").convert(value, parameter, context) as file:
            return shapes.attention_of_config(
                msgspec.json.decode(file.read(LONGEST_CONFIG).decode(errors="replace"))
            )
    except (EstimateError, msgspec.DecodeError, RecursionError) as error:
        raise click.BadParameter(f"{value}: {error}.") from None


@click.command("estimate")
@_option("--params", "NUMBER", shapes.parse_params, "Parameters: 70b, 350M.")
@_option(
    "--family", "NAME", parse_family, "A known model, llama-3.1-8b: its parameters, precision and KV cache."
)
@click.option(
    "--config-json",
    "attention_of_config",
    metavar="FILE",
    callback=_attention_of_config,
    help="The model's config.json: its KV cache.",
)
@_option(
    "--precision",
    _choices_text(Precision),
    shapes.parse_precision,
    "Data type of the weights.",
    show_default="bf16, or the family's",
)
@_option(
    "--phase",
    _choices_text(ModelPhase),
    shapes.parse_phase,
    "Training keeps activations.",
    default=ModelPhase.SERVING.value,
)
@_count_option("--batch", "batch size", "Concurrent sequences.", default="1")
@_count_option("--sequence", "sequence length", "Tokens.", default="512")
@_count_option("--gpus", "number of GPUs", "GPUs of the pod.", default="1")
@click.option("--checkpointing", is_flag=True, help="Gradient checkpointing while training.")
@output_option()
def estimate(
    *,
    family: ModelShape | None,
    attention_of_config: Attention | None,
    gpus: int,
    output: str,
    **options: Any,
) -> None:
    """Estimate the GPU memory of a model and its GPU classes.

    A rule of thumb, unless the KV cache is known: by --family or --config-json. Optimizer states and gradients are left out: full
    training needs several times more. Nothing is read from a network.

    Exit codes: 0, or 2 if an option is not valid.
    """
    attention = attention_of_config or (family and family.attention)
    if family is None and options["params"] is None:
        raise click.UsageError("Missing option '--params' or '--family'.")
    family_defaults = {"params": family.params, "precision": family.precision} if family else {}
    given_options = {name: value for name, value in options.items() if value is not None}
    shape = ModelShape(**{**family_defaults, **given_options, "attention": attention})
    gpu_classes = load_directory(None).classes
    estimated = estimates.estimate(shape)
    fit = estimates.class_fit(estimated, gpu_classes, gpus)
    if output in STRUCTURED:
        content = {"shape": shape, "bytes": estimated, "placement": fit, "advice": fit.advice}
        print_value(output, content)
    else:
        report = [*_memory_lines(shape, estimated, fit), "", *_class_lines(fit, gpu_classes), ""]
        basis = "A rule of thumb: too much for long sequences without --family or --config-json."
        if attention is not None:
            basis = f"KV cache of {attention}; a tenth of each GPU is left free."
        echo("\n".join([*report, basis, "Optimizer states and gradients are left out."]))


def _memory_lines(shape: ModelShape, estimated: Estimate, fit: ClassFit) -> Iterator[str]:
    yield f"{shape.params:,} parameters in {shape.precision.value}, {shape.phase.value}"
    parts = {"weights": estimated.weights, "KV cache": estimated.kv_cache}
    if shape.phase is ModelPhase.TRAINING:
        parts["activations"] = estimated.activations
    if not estimated.knows_kv_cache:
        parts["overhead"] = estimated.overhead
    for name, size in {**parts, "total": estimated.total}.items():
        yield f"  {name:12}{estimates.gib(size):>16}"
    if fit.gpus > 1:
        yield f"  {'per GPU':12}{estimates.gib(fit.per_gpu):>16}   on {fit.gpus} GPUs"


def _class_lines(fit: ClassFit, gpu_classes: GPUClasses) -> Iterator[str]:
    slices = {mig_slice.class_name: mig_slice.profile for mig_slice in fit.slices}
    if not fit.fits:
        # "8 × 40 GiB" stays on one line: textwrap does not break at a no-break space.
        sentence = f"{fit.advice[:1].upper()}{fit.advice[1:]}.".replace(" × ", "\u00a0×\u00a0")
        sentence = sentence.replace(" Gi", "\u00a0Gi")
        yield from (line.replace("\u00a0", " ") for line in textwrap.wrap(sentence, width=80))
        return
    yield "Fits" if fit.gpus == 1 else f"Fits on {fit.gpus} of"
    for name in fit.fits:
        gpu_class = gpu_classes.get(name)
        memory = f"{gpu_class.memory_gib} GiB" if gpu_class else ""
        remark = f"   a slice would do: fits {slices[name]}" if name in slices else ""
        yield f"  {name:20}{memory:>8}{remark}"
