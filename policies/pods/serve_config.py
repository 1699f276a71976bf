"""The GPUs that applications of Ray Serve need, by `serveConfigV2` of a RayService. Rule `parallelism` reads them.

Only what is written counts: the code of an application may say more. Sources: Ray 2.56 python/ray/serve/schema.py, and
python/ray/llm/_internal/serve/core/configs/llm_config.py (`llm_configs`: replicas have tensor × pipeline GPUs).
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import prod
from typing import Any

from policies.pods.field_paths import value_at

_MOST = 10_000
"""Maximum of a number that is read, of replicas or GPUs."""
_OWN_BUNDLES = {"resources_per_bundle", "placement_group_config"}
"""Fields of `llm_configs` that say what the replicas need instead, such as parts of GPUs."""


def served_gpus(config: Any) -> Fraction:
    """Return the GPUs of all replicas that are always there."""
    return sum((_replicas(each) * gpus for each, gpus in _deployments(config)), Fraction(0))


def _deployments(config: Any) -> Iterator[tuple[Any, Fraction]]:
    """Yield the options of each deployment, which have its number of replicas, and the GPUs of a replica."""
    for application in _maps(config, "applications"):
        for each in _maps(application, "deployments"):
            bundles = [_number(bundle.get("GPU")) for bundle in _maps(each, "placement_group_bundles")]
            own = _number(value_at(each, ("ray_actor_options", "num_gpus")))
            yield each, sum(bundles, Fraction(0)) if bundles else own
        for each in _maps(value_at(application, ("args",)), "llm_configs"):
            sizes = (f"{name}_parallel_size" for name in ("tensor", "pipeline"))
            if not each.keys() & _OWN_BUNDLES:
                gpus = prod(_number(value_at(each, ("engine_kwargs", size))) or 1 for size in sizes)
                yield each.get("deployment_config"), Fraction(gpus)


def _replicas(deployment: Any) -> Fraction:
    least = value_at(deployment, ("autoscaling_config", "min_replicas"))
    return _number(value_at(deployment, ("num_replicas",)) if least is None else least)


def _number(value: Any) -> Fraction:
    """Return a plain number; 0 for anything else: `auto`, a parameter."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Fraction(str(value)) if is_number and 0 <= value <= _MOST else Fraction(0)


def _maps(data: Any, name: str) -> Iterator[Mapping[str, Any]]:
    items = value_at(data, (name,))
    return (each for each in items if isinstance(each, dict)) if isinstance(items, list) else iter(())
