"""The export as files that API servers read at their start and when they change (`staticManifestsDir`): no API call changes them.

Each plugin refuses the kinds of the other, so each has a folder, and in it one file. An API server publishes of each folder
`sha256:` over the bytes and a NUL of every file that is not empty, in the order of names (k8s.io/apiserver,
pkg/admission/plugin/manifest/loader.go); it reads only files that end in .yaml, .yml or .json.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from hashlib import sha256
from pathlib import Path

import msgspec
import yaml

from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import CONTROLLER, NAMESPACE, WEBHOOK_CONFIGURATION, service_account
from webhook.configuration.yaml_documents import dump_document
from webhook.tools.export.admission_policies import ADMISSION_GROUP, STATIC_SUFFIX, Object
from webhook.tools.export.templates import FOLDER, fill, literal, text

PLUGINS = {"ValidatingAdmissionPolicy": "validating", "MutatingAdmissionPolicy": "mutating"}
"""The folder of each plugin, by the name that the API server's metrics have, too."""
FILE = "gpu-admission.yaml"
ADMISSION, README = "admission.yaml", "README.md"
MOUNTED_AT = "/etc/kubernetes/gpu-admission"
"""Where API servers find the folders."""
HASHES = "apiserver_manifest_admission_config_controller_last_config_info"
RELOADS = "apiserver_manifest_admission_config_controller_automatic_reload_last_timestamp_seconds"
CA_INJECTOR = service_account("cert-manager", "cert-manager-cainjector")
REFUSES_FOR = 300
"""The seconds after its last failure in which an API server rejects a file, as in deploy/chart/files/alerts.yaml."""
_SERIES = re.compile(r"^(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_VALUE = re.compile(r'Invalid value: ".*?(?<!\\)": ', re.DOTALL)
"""The CEL in a message of the API server, which is longer than what is said about it."""
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def guard_objects(accounts: Sequence[str], group: str, namespace: str = NAMESPACE) -> list[Object]:
    """Return the guard: only these users and members of the group change what gpu-admission consists of.

    Who issues certificates may renew caBundles: the controller, in the `namespace` of the installation, and cert-manager.
    """
    who = " or ".join([*accounts, f"a member of group {group}"])
    facts = {
        "WEBHOOK_CONFIGURATION": text(WEBHOOK_CONFIGURATION),
        "accounts": literal(accounts),
        "group": text(group),
        "bundle-writers": literal([service_account(namespace, CONTROLLER), CA_INJECTOR]),
        "said-by": text(f"only {who}"),
    }
    return list(yaml.safe_load_all(fill((FOLDER / "guard.yaml").read_text("utf-8"), facts)))


def static_files(objects: Iterable[Object], version: str) -> dict[str, str]:
    """Return the content of each file by its path below the directory: the same for the same configuration, of this version."""
    made = list(map(_as_static, objects))
    files = {}
    for plugin, folder in PLUGINS.items():
        documents = [dump_document(document) for document in made if document["kind"].startswith(plugin)]
        # The API server rejects a document without a kind, so the comment has none of its own.
        head = f"# Of configuration {version}, by gpu-admission export --static: export again, never edit.\n"
        files[f"{folder}/{FILE}"] = head + "---\n".join(documents) if documents else ""
    files[ADMISSION] = fill((FOLDER / "static-admission.yaml").read_text("utf-8"), {"MOUNTED_AT": MOUNTED_AT})
    files[README] = (FOLDER / "static-README.md").read_text("utf-8")
    return files


def _as_static(stored: Object) -> Object:
    """Return the object under the name that only files may have."""
    made = deepcopy(stored)
    made["metadata"]["name"] += STATIC_SUFFIX
    if "policyName" in made["spec"]:
        made["spec"]["policyName"] += STATIC_SUFFIX
    return made


def write(directory: Path, files: Mapping[str, str]) -> list[str]:
    """Replace the files by renaming, and return their paths: an API server reads the old or the new one whole.

    Raises OSError with nothing replaced. The folders stay: an API server in a container keeps what it mounted, and would not see
    another folder of that name. So does an `admission.yaml`, to which other plugins may have been added.
    """
    readme, title = directory / README, files[README].partition("\n")[0]
    if readme.exists() and not readme.read_text("utf-8", errors="replace").startswith(title):
        raise FileExistsError(f"{readme} is another one: name a directory for these files only")
    names = [name for name in files if name != ADMISSION or not (directory / ADMISSION).exists()]
    unfinished = {name: (directory / name).with_name(f".{Path(name).name}.new") for name in names}
    umask = os.umask(0o022)  # an API server need not be root
    try:
        for name, path in unfinished.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                file.write(files[name])
                file.flush()
                os.fsync(file.fileno())
        for name, path in unfinished.items():
            path.replace(directory / name)
    finally:
        os.umask(umask)
        for leftover in unfinished.values():
            leftover.unlink(missing_ok=True)
    return names


def missing_plugins(admission: Path) -> Iterator[str]:
    """Yield which of the folders an AdmissionConfiguration does not name, in words. Raises OSError."""
    written = admission.read_text("utf-8", errors="replace")
    for plugin, folder in PLUGINS.items():
        if not re.search(rf"^[^#\n]*\bstaticManifestsDir\W+[^#\n]*/{folder}\b", written, re.MULTILINE):
            where = f"staticManifestsDir: {MOUNTED_AT}/{folder}"
            yield f"{admission}: add plugin {plugin} with {where}, as {README} says"


def folder_hashes(directory: Path) -> dict[str, str]:
    """Return by plugin what an API server publishes of its folder, "" without data. Raises OSError."""
    found = {}
    for plugin, folder in PLUGINS.items():
        contents = [path.read_bytes() for path in sorted(_policy_files(directory / folder))]
        data = b"".join(content + b"\0" for content in contents if content)
        found[plugin] = f"sha256:{sha256(data).hexdigest()}" if data else ""
    return found


def _policy_files(folder: Path) -> list[Path]:
    """Return the files that an API server reads in a folder."""
    found = folder.iterdir() if folder.exists() else ()
    return [path for path in found if path.suffix.lower() in {".yaml", ".yml", ".json"} and not path.is_dir()]


def differences(directory: Path, files: Mapping[str, str]) -> Iterator[str]:
    """Yield how the folders and the AdmissionConfiguration differ from what would be written. Raises OSError."""
    for name in (name for name in files if name != README):
        path = directory / name
        if not path.exists():
            yield f"{path}: export again: it does not exist"
        elif name == ADMISSION:
            yield from missing_plugins(path)
        elif path.read_bytes() != files[name].encode():
            yield f"{path}: export again with the same options: the configuration in force makes another one"


class Loaded(msgspec.Struct, frozen=True):
    """What one API server has loaded for a plugin. `is_refused`: it reads the folder once a minute, and has just failed to.

    It counts no success once it reads again what it has loaded before.
    """

    server: str
    hash: str
    is_refused: bool


def loaded(api: ApiClient) -> dict[str, Loaded]:
    """Return by plugin what the API server that answers has loaded from files. Raises errors.ApiError."""
    read: dict[tuple[str, str, str], float] = {}
    folder_hashes: dict[str, tuple[str, str]] = {}
    for name, listed, value in _SERIES.findall(api.get("/metrics").decode()):
        labels = dict(_LABEL.findall(listed))
        if name == HASHES:
            folder_hashes[labels["plugin"]] = (labels["apiserver_id_hash"], labels["hash"])
        elif name == RELOADS:
            read[labels["plugin"], labels["apiserver_id_hash"], labels["status"]] = float(value)
    return {
        plugin: Loaded(
            server,
            loaded_hash,
            read.get((plugin, server, "failure"), 0)
            > max(read.get((plugin, server, "success"), 0), time.time() - REFUSES_FOR),
        )
        for plugin, (server, loaded_hash) in folder_hashes.items()
    }


def loaded_differences(found: Mapping[str, Loaded], folders: Mapping[str, str]) -> Iterator[str]:
    """Yield how what an API server has loaded differs from the `folder_hashes` of the folders."""
    for plugin, folder_hash in folders.items():
        state = found.get(plugin)
        if state is None:
            yield f"plugin {plugin}: start the API server with admission.yaml; it has loaded no static policies"
        elif state.hash != folder_hash or state.is_refused:
            why = (
                "it rejected the newest file, and will not start with it: its log says why"
                if state.is_refused
                else "put the folder on its control plane node, where it is read once a minute"
            )
            compared = f"has {state.hash or 'no data'}, the folder here {folder_hash or 'no data'}"
            yield f"plugin {plugin} of API server {state.server}: {compared}; {why}"


def refusals(api: ApiClient, objects: Iterable[Object]) -> Iterator[str]:
    """Yield what the API server says against the objects on a dry run. Raises errors.ApiError where none is possible."""
    for document in objects:
        kind, version = document["kind"], document["apiVersion"].rpartition("/")[2]
        plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
        path = f"/apis/{ADMISSION_GROUP}/{version}/{plural.lower()}"
        refused = api.dry_run(path, msgspec.json.encode(document)).error
        if isinstance(refused, errors.Forbidden):
            raise refused
        # An object of that name is found only after the new one was compiled.
        if refused is not None and not isinstance(refused, errors.AlreadyExists):
            yield f"{kind}/{document['metadata']['name']}: {_VALUE.sub('', str(refused))}"
