"""`gpu-admission estimate`: the GPU memory that a model needs, and the built-in classes that have it."""

import textwrap
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
import msgspec

from policies.gpus.classes import ClassCatalogue
from policies.models import estimate as estimates
from policies.models.estimate import Estimate, EstimateError, ModelPhase, ModelShape, Placement, Precision
from webhook.commands.output import print_json
from webhook.commands.parameters import output_option
from webhook.configuration.loader import load_directory

T = TypeVar("T")


class _Parsed(click.ParamType[T]):
    """An option with a parser of `policies.models.estimate`, whose error becomes click's."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._parse(str(value))
        except EstimateError as error:
            self.fail(f"{error}.", param, ctx)


def _count(what: str) -> _Parsed[int]:
    return _Parsed("NUMBER", lambda text: estimates.parse_count(text, what))


@click.command("estimate")
@click.option(
    "--params", required=True, type=_Parsed("NUMBER", estimates.parse_params), help="Parameters: 70b, 350M."
)
@click.option(
    "--precision",
    default=Precision.BF16.value,
    show_default=True,
    type=_Parsed("|".join(precision.value for precision in Precision), estimates.parse_precision),
    help="How a parameter is stored.",
)
@click.option(
    "--phase",
    default=ModelPhase.SERVING.value,
    show_default=True,
    type=_Parsed("|".join(phase.value for phase in ModelPhase), estimates.parse_phase),
    help="Training keeps activations.",
)
@click.option(
    "--batch", default="1", show_default=True, type=_count("batch size"), help="Sequences at a time."
)
@click.option("--sequence", default="2048", show_default=True, type=_count("sequence length"), help="Tokens.")
@click.option(
    "--gpus", default="1", show_default=True, type=_count("number of GPUs"), help="GPUs of the pod."
)
@click.option("--checkpointing", is_flag=True, help="Gradient checkpointing while training.")
@output_option("text", "json")
def estimate(*, gpus: int, output: str, **description: Any) -> None:
    """Estimate the GPU memory of a transformer and name the classes that have it.

    A rule of thumb. It leaves out optimizer states and gradients: full training needs several times more.

    Exit codes: 0, or 2 if an option is not valid.
    """
    shape = ModelShape(**description)
    catalogue = load_directory(None).classes
    needed = estimates.estimate(shape)
    found = estimates.placement(needed, catalogue, gpus)
    if output == "json":
        print_json({"shape": shape, "bytes": needed, "placement": found, "advice": found.advice})
    else:
        report = [*_memory(shape, needed, found), "", *_cards(found, catalogue), ""]
        click.echo("\n".join([*report, "A rule of thumb. It leaves out optimizer states and gradients."]))


def _memory(shape: ModelShape, needed: Estimate, found: Placement) -> Iterator[str]:
    yield f"{shape.params:,} parameters in {shape.precision.value}, {shape.phase.value}"
    for name, size in msgspec.structs.asdict(needed).items():
        if name != "activations" or shape.phase is ModelPhase.TRAINING:
            yield f"  {name.replace('kv_', 'KV '):12}{estimates.gib(size):>16}"
    if found.gpus > 1:
        yield f"  {'per GPU':12}{estimates.gib(found.per_gpu):>16}   on {found.gpus} GPUs"


def _cards(found: Placement, catalogue: ClassCatalogue) -> Iterator[str]:
    slices = {found_slice.class_name: found_slice.profile for found_slice in found.slices}
    if not found.fits:
        # "8 × 40 GB" stays on one line: textwrap does not break at a no-break space.
        sentence = f"{found.advice[:1].upper()}{found.advice[1:]}.".replace(" × ", "\u00a0×\u00a0")
        sentence = sentence.replace(" GB", "\u00a0GB")
        yield from (line.replace("\u00a0", " ") for line in textwrap.wrap(sentence, width=80))
        return
    yield "Fits" if found.gpus == 1 else f"Fits on {found.gpus} of"
    for name in found.fits:
        gpu_class = catalogue.get(name)
        memory = f"{gpu_class.memory_gib} GB" if gpu_class else ""
        remark = f"   a slice would do: fits {slices[name]}" if name in slices else ""
        yield f"  {name:20}{memory:>8}{remark}"
