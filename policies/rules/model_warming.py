"""Fetch the model before its server starts, so that no GPU waits for a download that was done before or could be shared.

Reads:   annotation model-uri (s3, gs, hf, https, pvc, models, oci: `policies.models.warming.model_uri`), or else the variable of
         a server that the policy names (`uriVariable`); model-path, where the server finds the files (else `mountPath`);
         model-cache-claim, a claim of the namespace that keeps them (else an emptyDir).
Adds:    a volume, an init container that fetches into it, and a read-only mount in every app container that requests a GPU
         (in the first, if none does). The init container requests no GPU, fits the restricted profile, comes after the
         sidecars that it may need, and leaves the pod in the QoS class it was in. It runs `gpu-admission fetch-model` with
         the credentials that the policy names, else with those of the servers. Of oci, only an image volume and the mounts.
Denies:  a URI, path or claim name that cannot be used, a URI that holds credentials, and one without a digest that the policy
         requires.
Warns:   of a container name, volume name or mount path that is taken: what is there stays, and nothing is fetched; of a Windows
         pod likewise, of an image if a node may not mount it, and of models without a server; of a gated model of the Hugging
         Face hub for which neither policy nor servers have a token; of a stage of MLflow.

Each URI has a folder of its own in a claim, so pods with different models can share one. Nothing happens without model-uri.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from policies.finding import ContactEdit, Edit, Finding, Reason, one_choice, warning
from policies.gpus.cards import needed_on_node
from policies.gpus.resource_mapping import ResourceMapping
from policies.models.warming.init_container import CACHE_VOLUME, FETCH_CONTAINER, HF_TOKEN, Warming
from policies.models.warming.model_uri import WITH_DIGEST, ModelURI, is_uri, parse_model_uri
from policies.models.warming.options import (
    FetchResources,
    SourceOptions,
    Sources,
    minimum_problem,
    mount_path_problem,
)
from policies.placement.image_volumes import all_mount_images
from policies.pods.annotations import (
    INEFFECTIVE_ANNOTATION,
    INVALID_ANNOTATION,
    MODEL_CACHE_CLAIM,
    MODEL_PATH,
    MODEL_URI,
    BadAnnotation,
)
from policies.pods.field_paths import annotation_path
from policies.pods.names import cleaned_path, is_dns_subdomain, is_variable_name
from policies.pods.patch import PodPatch
from policies.pods.pod import ContainerPlace, Pod, ResourceList, Resources, Volume
from policies.rule import Context, Rule, RuleOptions

MODEL_NOT_FETCHED = Reason("ModelNotFetched", "the model is not fetched in advance, or its fetching fails")
MODEL_STAGE = Reason("ModelStage", "a model URI names a stage, which MLflow has deprecated")

ID = "model-warming"
LARGEST_USER = 2**31 - 1


class ModelWarmingOptions(RuleOptions, frozen=True):
    mount_path: str = "/model-cache"
    sources: Sources = Sources()
    cache_size_limit: int | str = "200Gi"
    """Size limit of the emptyDir; a claim has its own size."""
    resources: FetchResources = FetchResources()
    run_as_user: int | None = 65532
    """User of the init container if the pod sets none; null leaves it to the image or the platform (OpenShift)."""
    uri_variable: str | None = None
    """A variable of the servers that may have the URI, such as MODEL_URI. None: only the annotation has it."""

    def problems(self) -> Iterator[tuple[str, str]]:
        if problem := mount_path_problem(self.mount_path):
            yield "mountPath", f'"{self.mount_path}" {problem}'
        for scheme in Sources.__struct_fields__:
            for field, sentence in self.sources.of(scheme).problems(scheme):
                yield f"sources.{scheme}.{field}", sentence
        if self.sources.models.credentials_key and self.sources.gs.exposes_token("gs"):
            yield (
                "sources.gs.endpoint",
                f'"{self.sources.gs.endpoint}" must begin with https://, as a token is sent there',
            )
        if problem := minimum_problem(self.cache_size_limit, "1Mi"):
            yield "cacheSizeLimit", problem
        for field, sentence in self.resources.problems():
            yield f"resources.{field}", sentence
        if self.uri_variable is not None and not is_variable_name(self.uri_variable):
            yield "uriVariable", f'"{self.uri_variable}" is not a valid variable name'
        if self.run_as_user is not None and not 1 <= self.run_as_user <= LARGEST_USER:
            known = f"is not from 1 to {LARGEST_USER}; root is rejected where pods are restricted"
            yield "runAsUser", f"{self.run_as_user} {known}"

    def advice(self) -> Iterator[tuple[str, str]]:
        who = "all users who may read the policy or pods can see"
        for scheme in Sources.__struct_fields__:
            for name in self.sources.of(scheme).plain_secrets():
                text = f"holds a secret in plain text, which {who}; name credentialsSecret instead"
                yield f"sources.{scheme}.env[{name}]", text


_not_fetched = partial(warning, reason=MODEL_NOT_FETCHED)


class WarmingRequest(NamedTuple):
    """What a pod asks for: the URI and where it is written, the mount path, and the claim of the cache."""

    uri: ModelURI
    where: str
    path: str
    claim: str | None


def mutate(patch: PodPatch, options: ModelWarmingOptions, context: Context) -> Iterator[Finding]:
    pod = patch.pod
    if MODEL_URI not in pod.annotations and options.uri_variable is None:
        return
    servers = serving_places(pod, context.resource_mapping)
    request = read_request(pod, options, servers)
    if not isinstance(request, WarmingRequest):
        yield from request
        return
    uri, _, path, claim = request
    source = options.sources.of(uri.scheme)
    if obstacle := next(_obstacles(request, pod, source, context), None):
        yield obstacle
        return
    security = pod.spec.security_context
    user = security and security.run_as_user
    stores = {"s3": options.sources.s3, "gs": options.sources.gs} if uri.scheme == "models" else {}
    warming = Warming(
        uri=uri,
        source=source,
        image=source.image or context.fetcher_image,
        claim=claim,
        size_limit=str(options.cache_size_limit),
        resources=fetch_resources(pod, options),
        run_as_user=None if user else options.run_as_user,  # the pod's own is inherited, unless that is root
        artifact_endpoints=tuple(f"{name}={each.endpoint}" for name, each in stores.items() if each.endpoint),
        exposes_key="gs" in stores and stores["gs"].exposes_token("gs"),
        servers=tuple(server.container for server in servers),
    )
    taken = list(conflict_findings(pod, warming, servers, path))
    yield from taken
    if not taken:
        inject(patch, warming, servers, path)
        if claim is not None and warming.is_fetched and not (security and security.fs_group is not None):
            message = f"is not set, and claim {claim} is written by a user who is not root"
            remedy = "set it, unless everyone may write to the claim"
            yield _not_fetched(path="spec.securityContext.fsGroup", message=message, remedy=remedy)
        yield from advice_findings(request, warming)


def read_request(
    pod: Pod, options: ModelWarmingOptions, servers: Sequence[ContainerPlace]
) -> WarmingRequest | list[Finding]:
    """Return what is asked for, or the findings about what is invalid; none of them if nothing is asked for."""
    annotations = pod.annotations
    written = annotations.get(MODEL_URI)
    where, text = (
        (annotation_path(MODEL_URI), written) if written is not None else _uri_variable(servers, options)
    )
    if text is None:
        return []
    uri, invalid = parse_model_uri(text), []
    path, claim = annotations.get(MODEL_PATH, options.mount_path), annotations.get(MODEL_CACHE_CLAIM)
    if isinstance(uri, BadAnnotation):
        invalid.append(uri)
    elif options.sources.of(uri.scheme).require_digest and uri.scheme in WITH_DIGEST and not uri.digest:
        ending = "@sha256:" if uri.scheme == "oci" else "#sha256="
        message = f"must end in a digest, which the policy requires of {uri.scheme}"
        remedy = f"add {ending} and the 64 hexadecimal digits of the model"
        invalid.append(
            BadAnnotation(
                MODEL_URI, uri.redacted, message, remedy, example=f"{uri.redacted}{ending}{'0' * 64}"
            )
        )
    if problem := mount_path_problem(path):
        remedy = "write an absolute path such as /models/llama"
        invalid.append(BadAnnotation(MODEL_PATH, path, problem, remedy, example="/models/llama"))
    if claim is not None and not is_dns_subdomain(claim):
        message = "is not the name of a PersistentVolumeClaim"
        remedy = "name a claim of the pod's namespace"
        invalid.append(BadAnnotation(MODEL_CACHE_CLAIM, claim, message, remedy, example="models"))
    if invalid or isinstance(uri, BadAnnotation):
        path_of = {annotation_path(MODEL_URI): where}
        return [each.finding().located(lambda written: path_of.get(written, written)) for each in invalid]
    return WarmingRequest(uri, where, path, claim)


def _uri_variable(servers: Sequence[ContainerPlace], options: ModelWarmingOptions) -> tuple[str, str | None]:
    """Return the place and the value of the first variable of the policy that has a URI."""
    for place in servers:
        for index, env_var in enumerate(place.container.env or ()):
            if env_var.name == options.uri_variable and env_var.value and is_uri(env_var.value):
                return f"{place.path}.env[{index}].value", env_var.value
    return "", None


def _obstacles(
    request: WarmingRequest, pod: Pod, source: SourceOptions, context: Context
) -> Iterator[Finding]:
    """Yield why the model cannot come."""
    no_effect = partial(
        _not_fetched, reason=INEFFECTIVE_ANNOTATION, path=request.where, value=request.uri.redacted
    )
    scheme = request.uri.scheme
    options_path = f"spec.rules.{ID}.sources.{scheme}"
    if pod.is_windows:
        image = "image volumes are Linux only" if scheme == "oci" else "the fetcher is a Linux image"
        yield no_effect(
            message=f"has no effect on a Windows pod: {image}",
            remedy="fetch the model in a container of your own",
        )
    if scheme == "models" and not (source.endpoint or source.image):
        yield no_effect(
            message="has no effect: the policy names no MLflow server",
            ask_contact=f"to set endpoint of source {scheme}",
            contact_choices=((ContactEdit("GPUPolicy", f"{options_path}.endpoint"),),),
        )
    requested = needed_on_node(pod, context.resource_mapping)
    if scheme == "oci" and not (source.image_volumes or all_mount_images(pod, requested, context.nodes)):
        yield no_effect(
            message="has no effect: not all nodes that can take the pod are known to mount images as volumes (kubelet "
            "1.36 with containerd 2.1 or CRI-O 1.31)",
            ask_contact=f"to set imageVolumes: true of source {scheme} if they do",
            contact_choices=((ContactEdit("GPUPolicy", f"{options_path}.imageVolumes", True),),),
        )


def serving_places(pod: Pod, resource_mapping: ResourceMapping) -> list[ContainerPlace]:
    """Return the app containers that request a GPU, else the first one. Sidecars start before the model is there."""
    requests_gpus = resource_mapping.container_requests_gpus
    return [place for place in pod.apps if requests_gpus(place.container)] or list(pod.apps[:1])


def fetch_resources(pod: Pod, options: ModelWarmingOptions) -> Resources | None:
    """Return limits equal to requests if the pod's QoS class needs them, else None.

    A Guaranteed pod needs them for every container, also init containers. A BestEffort pod would become Burstable. If the pod
    as a whole has resources, only those decide (ComputePodQOS in k8s.io/kubernetes pkg/apis/core/v1/helper/qos).
    """
    containers = [place.container for place in pod.places]
    written = [amounts for container in containers for amounts in (container.limits, container.requests)]
    has_compute = any(each.get(name) not in {None, "0", 0} for each in written for name in ("cpu", "memory"))
    if pod.spec.resources is not None or not has_compute:
        return None
    amounts: ResourceList = {"cpu": str(options.resources.cpu), "memory": str(options.resources.memory)}
    return Resources(limits=amounts, requests=amounts)


def conflict_findings(
    pod: Pod, warming: Warming, servers: list[ContainerPlace], path: str
) -> Iterator[Finding]:
    """Warn of names and paths that are taken. An init container with our name is ours, or the user put it in its place."""
    for place in pod.apps if warming.is_fetched else ():
        if place.container.name == FETCH_CONTAINER:
            what = f"the name {FETCH_CONTAINER} is taken"
            yield conflict_finding(f"{place.path}.name", what, "give that container another name")
    for volume in warming.volumes:
        existing = pod.volume_named(volume.name)
        if existing is not None and volume_source(existing) != volume_source(volume):
            yield conflict_finding(
                "spec.volumes", f"the name {volume.name} is taken", "give that volume another name"
            )
    for place in servers:
        for index, mount in enumerate(place.container.volume_mounts or ()):
            if mount.name != CACHE_VOLUME and cleaned_path(mount.mount_path) == cleaned_path(path):
                where = f"{place.path}.volumeMounts[{index}].mountPath"
                message = f"volume {mount.name} is mounted at {path} already"
                yield conflict_finding(where, message, f"name another path in annotation {MODEL_PATH}")


def conflict_finding(path: str, what: str, remedy: str) -> Finding:
    return _not_fetched(path=path, message=f"{what}, so the model is not fetched in advance", remedy=remedy)


def volume_source(volume: Volume) -> tuple[object, ...]:
    claim, secret = volume.persistent_volume_claim, volume.secret
    return (
        volume.empty_dir is not None,
        claim and claim.claim_name,
        secret and secret.secret_name,
        volume.image,
    )


def inject(patch: PodPatch, warming: Warming, servers: list[ContainerPlace], path: str) -> None:
    pod = patch.pod
    for volume in warming.volumes:
        if pod.volume_named(volume.name) is None:
            patch.add_volume(volume)
    is_there = any(container.name == FETCH_CONTAINER for container in pod.spec.init_containers or ())
    if warming.is_fetched and not is_there:
        sidecars = [place.index for place in pod.places if place.is_sidecar]
        patch.add_init_container(warming.container, max(sidecars, default=-1) + 1)
    for place in servers:
        if not any(mount.name == CACHE_VOLUME for mount in place.container.volume_mounts or ()):
            patch.add_volume_mount(place, warming.serving_mount(path))


def advice_findings(request: WarmingRequest, warming: Warming) -> Iterator[Finding]:
    """Warn of a gated model without a token, unless a claim may hold the model or another image or server may have a token.

    Also of a claim that holds nothing, and of a stage.
    """
    uri, source = request.uri, warming.source
    if uri.needs_token and not (warming.claim or source.image or source.endpoint or warming.may_have_token):
        yield _not_fetched(
            path=request.where,
            value=uri.redacted,
            message="should have a token: this model is gated, so fetching it fails, and the pod stays in Init",
            remedy=f"set {HF_TOKEN} of the container from a Secret",
        )
    if warming.claim and not warming.is_fetched:
        path = annotation_path(MODEL_CACHE_CLAIM)
        yield _not_fetched(
            reason=INEFFECTIVE_ANNOTATION,
            path=path,
            value=warming.claim,
            message="has no effect: an image is mounted without a copy",
            choices=one_choice(Edit(path)),
        )
    if stage := uri.registered.get("stage"):
        yield _not_fetched(
            reason=MODEL_STAGE,
            path=request.where,
            value=uri.redacted,
            message="should name a version or an alias: MLflow has deprecated stages since 2.9",
            remedy=f"write models:/{uri.host}/VERSION or models:/{uri.host}@ALIAS",
            choices=one_choice(Edit(request.where, f"models:/{uri.host}@{stage.lower()}")),
            is_example=True,
        )


RULE = Rule(
    id=ID,
    reasons=(INVALID_ANNOTATION, INEFFECTIVE_ANNOTATION, MODEL_NOT_FETCHED, MODEL_STAGE),
    summary="models are fetched, once, before their servers start",
    options=ModelWarmingOptions,
    mutate=mutate,
    not_fixable="it denies URIs, paths and claim names that cannot be used, and only their author knows the right ones",
    not_exported="it adds a container that fetches the model; without it, the server loads the model itself",
)
