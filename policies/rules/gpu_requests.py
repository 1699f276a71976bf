"""Reject GPU amounts that no node could give, in words that need no knowledge of extended resources.

Reads:   limits and requests of GPU resources of every app and init container, fraction annotations, the class to which the pod
         is pinned, the variables by which containers choose among GPUs.
Denies:  amounts that are invalid, negative, or not whole; a request that differs from its limit or has none; more than the policy
         allows or a node of the class has; slices of another class; another vendor's resource than the class's.
Warns:   of slices that no class lists (denied with `knownProfilesOnly`, or where the nodes are known and none has them), of more
         than one time-sliced share, of variables that choose GPUs by hand, of parts of a GPU beside whole ones, and of parts that
         count as more than they are; of more GPUs than a machine has, and of kinds that few nodes have together; of a
         DaemonSet that holds GPUs.
Adds:    with `completeLimits`, the limit that belongs to a request.

Runs before mutation, too: built-in validation comes right after it and rejects the same pods with worse sentences. What is
written decides, not the phase, so templates come out the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from policies.finding import ContactEdit, Edit, Finding, Reason, Severity, one_choice, truncate, warning
from policies.gpus.amount import (
    FRACTIONAL_GPU,
    INVALID_QUANTITY,
    MAX_QUOTED,
    NAME_SLOT,
    QUARTER_WORDS,
    UNIT_NOUNS,
    Amount,
    decimal_text,
    is_extended,
    larger_amount,
    limit_and_request,
)
from policies.gpus.cards import gpu_requests
from policies.gpus.classes import GPUClasses
from policies.gpus.fraction_annotations import (
    FRACTION_BESIDE_GPUS,
    FRACTION_CONTAINER,
    FRACTION_TOO_SMALL,
    fraction_findings,
)
from policies.gpus.limit_range_findings import GPUS_BY_DEFAULT, default_gpu_warnings
from policies.gpus.mapping_spec import Measure
from policies.gpus.resource_limits import ResourceLimits, limit_for, limit_problems, unknown_names
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.gpus.vendors import NVIDIA_VISIBLE_DEVICES
from policies.placement.availability import (
    EXCEEDS_NODE,
    NO_NODE,
    OTHER_VENDOR,
    UNKNOWN_SLICE,
    Availability,
    Complaint,
)
from policies.placement.pinning import named_nodes
from policies.placement.possible_edits import rarely_together
from policies.pods.annotations import INEFFECTIVE_ANNOTATION, INVALID_ANNOTATION
from policies.pods.defaults_annotation import DEFAULTS_ANNOTATION
from policies.pods.patch import PodPatch
from policies.pods.pod import ContainerPlace, Pod
from policies.pods.quantity import LARGEST, NANO, Quantity, QuantityError, parse_or_none
from policies.pods.requests import ways_to_request
from policies.pods.workload import Workload
from policies.rule import Context, Phase, Rule, RuleOptions
from policies.rules.gpu_class import class_options
from policies.rules.gpu_isolation import DEVICE_VARIABLE
from policies.rules.parallelism import SEVERAL_SLICES

REQUEST_NOT_LIMIT = Reason("RequestNotLimit", "a GPU request differs from its limit")
MISSING_LIMIT = Reason("MissingLimit", "a GPU request has no limit")
EXCEEDS_MAX_PER_CONTAINER = Reason(
    "ExceedsMaxPerContainer", "a container requests more than maxPerContainer of the policy"
)
EXCEEDS_MAX_PER_POD = Reason("ExceedsMaxPerPod", "a pod requests more than maxPerPod of the policy")
DAEMONSET_HOLDS_GPUS = Reason("DaemonSetHoldsGPUs", "a DaemonSet holds whole GPUs on every node")

ID = "gpu-requests"

VISIBLE_DEVICES = (NVIDIA_VISIBLE_DEVICES, "CUDA_VISIBLE_DEVICES")

MAX_GPUS_PER_NODE = 16
"""The largest machines have 16: DGX-2 and HGX-2, p2.16xlarge of AWS, a2-megagpu-16g of Google; most have 8. A GB200 NVL72 is 18
nodes of 4."""

_PERCENTAGES = frozenset({Measure.MEMORY_PERCENT, Measure.CORE_PERCENT})


class AmountProblem(NamedTuple):
    """A finding about an amount that `gpu-admission export` also writes into its policies."""

    reason: Reason
    message: str
    remedy: str
    instead: int
    """The amount of the fix."""

    def finding(self, amount: Amount) -> Finding:
        return amount.finding(self.reason, self.message, self.remedy, amount=self.instead)


TOO_LARGE_AMOUNT = AmountProblem(
    INVALID_QUANTITY,
    f"must be at most {LARGEST // 1000}: Kubernetes counts thousandths in 64 bits",
    f"set {NAME_SLOT}: 1",
    1,
)
OVER_100_PERCENT = AmountProblem(
    EXCEEDS_NODE, "must be at most 100 percent of a GPU", f"set {NAME_SLOT}: 100 or less", 100
)


class GPURequestsOptions(RuleOptions, frozen=True):
    """`None` means unlimited. `maxPerContainer` and `maxPerPod` hold for each resource that counts things (GPUs, slices)."""

    max_per_container: ResourceLimits = None
    max_per_pod: ResourceLimits = None
    complete_limits: bool = False
    gpus_per_node: int = MAX_GPUS_PER_NODE
    """For classes that do not state it. More slices are denied; more whole cards of NVIDIA give a warning."""
    known_profiles_only: bool = False
    """The classes list every MIG profile of the cluster, so that any other one is denied."""

    def problems(self) -> Iterator[tuple[str, str]]:
        for name, limits in self._limits():
            yield from limit_problems(limits, name)
        if self.gpus_per_node < 1:
            yield "gpusPerNode", f"must be 1 or more, not {self.gpus_per_node}"

    def class_problems(self, gpu_classes: GPUClasses) -> Iterator[tuple[str, str]]:
        for name, limits in self._limits():
            yield from unknown_names(limits, gpu_classes, name)

    def _limits(self) -> tuple[tuple[str, ResourceLimits], ...]:
        return ("maxPerContainer", self.max_per_container), ("maxPerPod", self.max_per_pod)


class AmountLimits(msgspec.Struct, frozen=True):
    """The limits of the policy, and what the nodes of the pod's classes have."""

    availability: Availability
    resource_mapping: ResourceMapping
    options: GPURequestsOptions
    may_replace: bool = True
    """Whether another resource is offered for one that no node has. Not to a pod or DaemonSet that chose its nodes."""

    def check_resource(self, resource: GPUResource, count: int) -> Complaint | None:
        """Complain about a resource that the classes of the pod, or all nodes, lack."""
        if self.resource_mapping.suggested_name(
            resource.name
        ):  # rule ineffective-fields says which name is meant
            return None
        availability, only_known = self.availability, self.options.known_profiles_only
        return (
            availability.other_vendor(resource)
            or availability.unknown_slice(resource, known_profiles_only=only_known)
            or availability.no_node_has(resource, self.resource_mapping, count if self.may_replace else 0)
        )

    def check_container(self, resource: GPUResource, count: int) -> Complaint | None:
        """Complain if a container requests too many."""
        limit = limit_for(self.options.max_per_container, resource, self.availability.pinned)
        if not resource.measure.is_count or limit is None or count <= limit:
            return None
        message = f"must be at most {limit} per container by policy"
        return Complaint(
            EXCEEDS_MAX_PER_CONTAINER, message, f"set {NAME_SLOT}: {limit} or less", amount=limit
        )

    def check_pod(self, resource: GPUResource, total: int, *, is_reported: bool) -> Iterator[Complaint]:
        """Complain if the pod requests too many for a pod or a node. `is_reported`: `check_container` complained already."""
        availability, limit = self.availability, self._max_per_pod(resource)
        complaints = [
            availability.too_many_slices(resource, total, self.options.gpus_per_node),
            availability.too_many_cards(resource, total),
        ]
        if limit is not None and total > limit and not is_reported:
            message, remedy = (
                f"must be at most {limit} per pod by policy",
                f"request {NAME_SLOT}: {limit} or less",
            )
            complaints.insert(0, Complaint(EXCEEDS_MAX_PER_POD, message, remedy, amount=limit))
        if not is_reported and not any(complaints):
            complaints.append(availability.more_than_any_machine(resource, total, self.options.gpus_per_node))
        return filter(None, complaints)

    def may_exceed(self, resource: GPUResource, total: int) -> bool:
        """Whether `check_pod` may complain: cheap, and true of all slices."""
        limits = (
            self._max_per_pod(resource),
            self.options.gpus_per_node,
            self.availability.cards_per_node(resource),
        )
        is_above = any(limit is not None and total > limit for limit in limits)
        return is_above or resource.measure is Measure.SLICES

    def _max_per_pod(self, resource: GPUResource) -> int | None:
        return limit_for(self.options.max_per_pod, resource, self.availability.pinned)


def check(pod: Pod, options: GPURequestsOptions, context: Context) -> Iterator[Finding]:
    availability = Availability(pod, context.classes, class_options(context), context.nodes)
    may_replace = not (context.made_by_daemonset or named_nodes(pod))
    limits = AmountLimits(availability, context.resource_mapping, options, may_replace)
    requests: dict[GPUResource, list[Amount]] = {}
    for place in pod.places:
        for resource in context.resource_mapping.named_resources(place.container):
            limit, request = limit_and_request(place, resource)
            counted = larger_amount(limit, request)
            if counted.value and resource.measure.is_count:
                requests.setdefault(resource, []).append(counted)
            # If limit and request are equal, only the limit is reported.
            differing = [limit] if limit and request and request.same_as(limit) else [limit, request]
            shape = [f for each in differing if each for f in number_findings(each, availability, context)]
            # Of a resource that must go, nothing else is said.
            must_go = availability.other_vendor(resource) is not None
            pair = () if must_go else pair_findings(limit, request, options, context)
            yield from shape or [*pair, *size_findings(counted, limits)]
        yield from variable_findings(place, context)
    yield from total_findings(pod, requests, limits)
    yield from rarely_together(availability, requests, context.resource_mapping)
    has_scheduler = context.phase is not Phase.MUTATE
    yield from fraction_findings(pod, context.resource_mapping, has_scheduler=has_scheduler)
    if context.limit_ranges is not None and context.phase is not Phase.VALIDATE:  # which would repeat it
        yield from default_gpu_warnings(pod, context.limit_ranges, context.resource_mapping)


def mutate(patch: PodPatch, options: GPURequestsOptions, context: Context) -> Iterator[Finding]:
    for place in patch.pod.places if options.complete_limits else ():
        limits, requests = place.container.limits, place.container.requests
        for name, raw in requests.items():
            if (
                name not in limits
                and is_extended(name)
                and context.resource_mapping.resource(name) is not None
            ):
                quantity = parse_or_none(raw)
                if quantity is not None and quantity.is_whole and quantity.nano >= 0:
                    patch.set_resource(place, "limits", name, raw)
    yield from ()


def number_findings(amount: Amount, availability: Availability, context: Context) -> Iterator[Finding]:
    quantity, resource = amount.quantity, amount.resource
    whole_card = context.resource_mapping.whole_card_resource
    if quantity is None:
        yield amount.finding(INVALID_QUANTITY, "must be a quantity that Kubernetes can count", amount=1)
    elif quantity.nano < 0:
        yield amount.finding(
            INVALID_QUANTITY, "must not be negative", amount=1, choices=(amount.edits_to_set(None),)
        )
    elif quantity.milli_value > LARGEST:
        # Validation looks at the thousandths (`MilliValue()`), which overflow: it refuses most of these, and accepts some.
        yield TOO_LARGE_AMOUNT.finding(amount)
    elif not quantity.is_whole:
        yield fraction_finding(amount, quantity, availability, context)
    elif resource.measure in _PERCENTAGES and quantity > Quantity(100 * NANO) and whole_card(resource.name):
        # Without a resource that counts the cards, 200 percent are two of them.
        yield OVER_100_PERCENT.finding(amount)


def fraction_finding(
    amount: Amount, quantity: Quantity, availability: Availability, context: Context
) -> Finding:
    resource, next_amount = amount.resource, quantity.value
    choices = [amount.edits_to_set(each) for each in (next_amount - 1, next_amount) if each]
    if resource.measure is not Measure.DEVICES:
        noun = UNIT_NOUNS[resource.measure]
        return amount.finding(FRACTIONAL_GPU, f"must be a whole number of {noun}", choices=tuple(choices))
    noun = "GPUs" if "gpu" in resource.name else "accelerators"
    fraction, smaller = Fraction(quantity.nano, NANO), dict[str, str]()
    if fraction > 1:
        requested_text = f"{decimal_text(quantity)} of them"
    else:
        requested_text = QUARTER_WORDS.get(4 * fraction) or f"{decimal_text(quantity)} of one"
        smaller = availability.smaller_resources(resource, fraction, context.resource_mapping)
    message = f"must be a whole number of {noun}, not {requested_text}"
    choices += [amount.edits_to_replace(name, 1) for name in smaller]
    ways = [f"{NAME_SLOT}: {next_amount}", *(f"{name}: 1 ({what})" for name, what in smaller.items())]
    remedy = f"set {', or '.join(ways)}" if smaller else ""
    return amount.finding(FRACTIONAL_GPU, message, remedy, choices=tuple(choices))


def pair_findings(
    limit: Amount | None, request: Amount | None, options: GPURequestsOptions, context: Context
) -> Iterator[Finding]:
    """Deny what the API server's validation of extended resources refuses (`validateResourceRequirements`)."""
    if request is None or not is_extended(request.resource.name):
        return
    name = request.resource.name
    if limit is not None:
        if not request.same_as(limit):
            message = f"must equal limits[{name}] ({limit.raw or 0}): GPUs cannot be overcommitted"
            yield request.finding(REQUEST_NOT_LIMIT, message, amount=limit.raw or 0)
        return
    remedy = f"add {name}: {request.raw or 0} to resources.limits"
    choices = one_choice(Edit(f"{request.place.path}.resources.limits[{name}]", request.raw or 0))
    if not options.complete_limits:
        message = "must have an equal limit: GPUs cannot be overcommitted"
        yield replace(request.finding(MISSING_LIMIT, message, remedy), choices=choices)
    elif context.phase is Phase.TEMPLATE:
        message = "must have an equal limit in a template: completeLimits adds it to pods only"
        yield replace(request.finding(MISSING_LIMIT, message, remedy, Severity.WARNING), choices=choices)


def size_findings(amount: Amount, limits: AmountLimits) -> Iterator[Finding]:
    """Report amounts that are too large for one container, and resources that no class or node has."""
    resource, count = amount.resource, amount.value
    if count == 0:
        return
    for complaint in (limits.check_container(resource, count), limits.check_resource(resource, count)):
        if complaint is not None:
            yield amount.finding(*complaint)
    if count > 1 and limits.availability.is_time_sliced(resource):
        yield amount.finding(
            SEVERAL_SLICES,
            "should be 1: several time-sliced shares give no more of a GPU, and its device plugin may reject them",
            severity=Severity.WARNING,
            amount=1,
        )


def total_findings(
    pod: Pod, requests: Mapping[GPUResource, Sequence[Amount]], limits: AmountLimits
) -> Iterator[Finding]:
    """Report totals that are too large for one pod or one node, by the arithmetic of the scheduler.

    The finding is at the amount if only one container has one, else at the spec. `requests`: the positive amounts of containers.
    """
    sums = {resource: sum(amount.value for amount in amounts) for resource, amounts in requests.items()}
    if not pod.spec.overhead and not any(limits.may_exceed(*item) for item in sums.items()):
        return  # all containers together stay below every limit
    try:
        totals = gpu_requests(pod, limits.resource_mapping)
    except QuantityError:
        return  # reported where it is written
    for resource, total in totals.items():
        if not resource.measure.is_count or total.denominator != 1:
            continue
        of_resource = requests.get(resource, [])
        only_amount = of_resource[0] if len(of_resource) == 1 else None
        is_reported = only_amount is not None and limits.check_container(resource, int(total)) is not None
        for complaint in limits.check_pod(resource, int(total), is_reported=is_reported):
            if only_amount is not None:
                yield only_amount.finding(*complaint)
                continue
            allowed = complaint.amount
            amounts = [(amount.place, int(amount.value)) for amount in of_resource]
            choices = tuple(
                tuple(
                    edit for index, amount in way.items() for edit in of_resource[index].edits_to_set(amount)
                )
                for way in (() if allowed is None else ways_to_request(pod, int(total) - allowed, amounts))
            )
            raised = ContactEdit("GPUPolicy", "spec.rules.gpu-requests.maxPerPod", int(total))
            raising = () if choices or complaint.reason is not EXCEEDS_MAX_PER_POD else ((raised,),)
            yield Finding(
                reason=complaint.reason,
                severity=complaint.severity,
                path="spec",
                message=f"the pod needs {total} {resource.name} at one time: {complaint.message}",
                choices=choices,
                is_example=True,
                remedy="" if raising else complaint.remedy.replace(NAME_SLOT, resource.name),
                ask_contact="to raise gpu-requests.maxPerPod" if raising else "",
                contact_choices=raising,
            )


def variable_findings(place: ContainerPlace, context: Context) -> Iterator[Finding]:
    """Warn of variables that choose GPUs, in a container to which the device plugin assigns GPUs."""
    if not context.resource_mapping.container_requests_gpus(place.container):
        return
    for index, variable in enumerate(place.container.env or ()):
        if variable.name in VISIBLE_DEVICES:
            path = f"{place.path}.env[{index}]"
            yield warning(
                reason=DEVICE_VARIABLE,
                path=path,
                container=place.container.name,
                value=None if variable.value is None else truncate(variable.value, MAX_QUOTED),
                message=f"{variable.name} should not be set by hand: the node decides which GPUs a container gets",
                choices=one_choice(Edit(path)),
                remedy=f"remove {variable.name}",
            )


def check_workload(workload: Workload, _options: GPURequestsOptions, context: Context) -> Iterator[Finding]:
    """Warn of a DaemonSet with whole GPUs, such as a monitor that requests one to see it."""
    for pods in workload.pods if workload.kind == "DaemonSet" else ():
        requests = context.resource_mapping.requests(pods.pod)
        requested = next((each for each in requests if each.resource.measure is Measure.DEVICES), None)
        if requested is not None:
            yield warning(
                reason=DAEMONSET_HOLDS_GPUS,
                path=f"{pods.path}.{requested.place.amount_paths(requested.resource.name)[0]}",
                container=requested.place.container.name,
                value=str(requested.quantity),
                message="is held on every node of this DaemonSet, and no other pod gets it there",
                choices=one_choice(
                    *(
                        Edit(f"{pods.path}.{path}")
                        for path in requested.place.amount_paths(requested.resource.name)
                    )
                ),
                is_example=True,
                remedy="remove the request if it only monitors GPUs",
                ask_contact="to exempt its namespace in the GPUPolicy",
                contact_choices=((ContactEdit("GPUPolicy", "spec.exempt"),),),
            )


RULE = Rule(
    id=ID,
    reasons=(
        INVALID_QUANTITY,
        FRACTIONAL_GPU,
        REQUEST_NOT_LIMIT,
        MISSING_LIMIT,
        EXCEEDS_MAX_PER_CONTAINER,
        EXCEEDS_MAX_PER_POD,
        EXCEEDS_NODE,
        OTHER_VENDOR,
        UNKNOWN_SLICE,
        SEVERAL_SLICES,
        DEVICE_VARIABLE,
        DAEMONSET_HOLDS_GPUS,
        FRACTION_BESIDE_GPUS,
        FRACTION_TOO_SMALL,
        INVALID_ANNOTATION,
        INEFFECTIVE_ANNOTATION,
        NO_NODE,
        GPUS_BY_DEFAULT,
    ),
    summary="GPU requests are whole, equal their limits, and can be met",
    options=GPURequestsOptions,
    mutate=mutate,
    check=check,
    check_workload=check_workload,
    check_before_mutation=True,
    metadata_keys=(FRACTION_CONTAINER, DEFAULTS_ANNOTATION),
    exported_without={
        "slices that no class has, more slices or cards than a node has, another vendor's resource than the class's": (
            "what a class has depends on where the pod can land, which is computed over all GPUClasses"
        ),
        "the values of fraction annotations": "their scheduler rejects them itself; the pod gets no GPU by them",
        "warnings": "about time-sliced shares and variables set by hand: the webhook gives this advice",
        "amounts finer than thousandths": "CEL compares quantities exactly, the API server rounds them up to thousandths",
        "pod templates of workloads": "their pods are checked when they are created",
        "limits by class": "the largest holds for a pod that does not pin itself by labels of nodes",
        "completeLimits": "without the webhook the API server itself rejects such pods",
    },
)
