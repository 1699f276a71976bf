"""The export as files that API servers read at their start and when they change (`staticManifestsDir`): no API call changes them.

Each plugin refuses the kinds of the other, so each has a folder, and in it one file. An API server publishes of each folder
`sha256:` over the bytes and a NUL of every file that is not empty, in the order of names (k8s.io/apiserver,
pkg/admission/plugin/manifest/loader.go); it reads only files that end in .yaml, .yml or .json.
"""

import os
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from hashlib import sha256
from pathlib import Path

import msgspec
import yaml

from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import CONTROLLER, NAMESPACE, RELEASE, WEBHOOK_CONFIGURATION, service_account
from webhook.configuration.yaml_documents import dump_document
from webhook.tools.export.admission_policies import AdmissionPolicies
from webhook.tools.export.cel import text, texts
from webhook.tools.export.objects import GROUP, SUFFIX, Object
from webhook.tools.export.templates import FOLDER, fill

PLUGINS = {"ValidatingAdmissionPolicy": "validating", "MutatingAdmissionPolicy": "mutating"}
"""The folder of each plugin, by the name that the API server's metrics have, too."""
FILE = "gpu-admission.yaml"
ADMISSION, README = "admission.yaml", "README.md"
MOUNTED_AT = "/etc/kubernetes/gpu-admission"
"""Where API servers find the folders."""
HASHES = "apiserver_manifest_admission_config_controller_last_config_info"
RELOADS = "apiserver_manifest_admission_config_controller_automatic_reload_last_timestamp_seconds"
_SERIES = re.compile(r"^(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Guard(msgspec.Struct, frozen=True):
    """Who may change what gpu-admission consists of: the users that release it, and the members of one group.

    The controller, in the `namespace` of the installation, may renew caBundles.
    """

    accounts: tuple[str, ...]
    group: str
    namespace: str = NAMESPACE

    def objects(self) -> list[Object]:
        return list(yaml.safe_load_all(fill((FOLDER / "guard.yaml").read_text("utf-8"), self._facts)))

    @property
    def _facts(self) -> Mapping[str, str]:
        who = " or ".join([*self.accounts, f"a member of group {self.group}"])
        return {
            "WEBHOOK_CONFIGURATION": text(WEBHOOK_CONFIGURATION),
            "accounts": texts(self.accounts),
            "groups": texts([self.group]),
            "controller": text(service_account(self.namespace, CONTROLLER)),
            "release": text(service_account(self.namespace, RELEASE)),
            "said-by": text(f"only {who}"),
        }


def static_files(exported: AdmissionPolicies, guard: Guard | None) -> dict[str, str]:
    """Return the content of each file by its path below the directory: the same for the same configuration."""
    made = [*(guard.objects() if guard else ()), *exported.objects]
    files = {}
    for plugin, folder in PLUGINS.items():
        documents = [dump_document(_static(each)) for each in made if each["kind"].startswith(plugin)]
        head = f"# Of configuration {exported.version}, by gpu-admission export --static: export again, never edit.\n"
        # The API server refuses a document without a kind, so the comment has none of its own.
        files[f"{folder}/{FILE}"] = head + "---\n".join(documents) if documents else ""
    files[ADMISSION] = dump_document(
        {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": _plugins()}
    )
    files[README] = _readme()
    return files


def _plugins() -> list[Object]:
    """Return the entries of an AdmissionConfiguration that name the folders."""
    return [
        {
            "name": plugin,
            "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": f"{plugin}Configuration",
                "staticManifestsDir": f"{MOUNTED_AT}/{folder}",
            },
        }
        for plugin, folder in PLUGINS.items()
    ]


def _readme() -> str:
    return (FOLDER / "static-README.md").read_text("utf-8")


def _static(stored: Object) -> Object:
    """Return the object under the name that only files may have."""
    made = deepcopy(stored)
    made["metadata"]["name"] += SUFFIX
    if "policyName" in made["spec"]:
        made["spec"]["policyName"] += SUFFIX
    return made


def write(directory: Path, files: Mapping[str, str]) -> None:
    """Replace the files by renaming: an API server reads the old or the new one whole. Raises OSError with nothing replaced.

    The folders stay: an API server in a container keeps what it mounted, and would not see another folder of that name. So does
    an `admission.yaml`, to which other plugins may have been added, and a README.md that is another one.
    """
    title = _readme().splitlines()[0]
    readme = directory / README
    if readme.exists() and not readme.read_text("utf-8", errors="replace").startswith(title):
        raise FileExistsError(f"{readme} is another one: name a directory for these files only")
    paths = {directory / name: content for name, content in files.items()}
    if (directory / ADMISSION).exists():
        paths.pop(directory / ADMISSION, None)
    unfinished = {path: path.with_name(f".{path.name}.new") for path in paths}
    try:
        for path, content in paths.items():
            if not path.parent.exists():
                path.parent.mkdir(parents=True)
                path.parent.chmod(0o755)
            with unfinished[path].open("w", encoding="utf-8") as file:
                os.fchmod(
                    file.fileno(), 0o644
                )  # also where the umask is stricter: an API server need not be root
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path in paths:
            unfinished[path].replace(path)
    finally:
        for leftover in unfinished.values():
            leftover.unlink(missing_ok=True)


def lacking(admission: Path) -> Iterator[str]:
    """Yield what an AdmissionConfiguration lacks of the two plugins, in words. Raises OSError."""
    try:
        document = yaml.safe_load(admission.read_text("utf-8", errors="replace"))
    except yaml.YAMLError:
        document = None
    listed = document.get("plugins") if isinstance(document, dict) else None
    for plugin in _plugins():
        where = plugin["configuration"]["staticManifestsDir"]
        entries = listed if isinstance(listed, list) else []
        if not any(_names_folder(entry, plugin["name"], Path(where).name) for entry in entries):
            yield f"{admission}: add plugin {plugin['name']} with staticManifestsDir: {where}, as {README} says"


def _names_folder(entry: object, plugin: str, folder: str) -> bool:
    """Whether an entry of an AdmissionConfiguration gives the plugin a folder of this name, wherever that is mounted."""
    found = entry if isinstance(entry, dict) else {}
    configuration = found.get("configuration")
    where = configuration.get("staticManifestsDir") if isinstance(configuration, dict) else None
    return found.get("name") == plugin and isinstance(where, str) and Path(where).name == folder


def folder_hash(folder: Path) -> str:
    """Return what an API server publishes of a folder, "" of one without data. Raises OSError."""
    return _hash(path.read_bytes() for path in _read(folder))


def _read(folder: Path) -> list[Path]:
    """Return the files that an API server reads in a folder."""
    found = sorted(folder.iterdir()) if folder.exists() else []
    return [path for path in found if path.suffix.lower() in {".yaml", ".yml", ".json"} and not path.is_dir()]


def _hash(contents: Iterator[bytes]) -> str:
    data = b"".join(content + b"\0" for content in contents if content)
    return f"sha256:{sha256(data).hexdigest()}" if data else ""


def differences(directory: Path, files: Mapping[str, str]) -> Iterator[str]:
    """Yield how the folders and the AdmissionConfiguration differ from what would be written. Raises OSError."""
    for name in PLUGINS.values():
        folder = directory / name
        wanted = _hash(iter([files[f"{name}/{FILE}"].encode()]))
        yield from (
            f"{path}: remove it: the API server reads it, too" for path in _read(folder) if path.name != FILE
        )
        found = _hash(path.read_bytes() for path in _read(folder) if path.name == FILE)
        if found != wanted:
            yield (
                f"{folder / FILE}: export again with the same options; it is {found or 'without data'}, and the "
                f"configuration in force makes {wanted or 'no data'}"
            )
    admission = directory / ADMISSION
    yield from (
        lacking(admission) if admission.exists() else (f"{admission}: export again: it does not exist",)
    )


class Loaded(msgspec.Struct, frozen=True):
    """What one API server has loaded for a plugin. `is_refused`: its newest attempt to read the folder failed."""

    server: str
    hash: str
    is_refused: bool


def loaded(api: ApiClient) -> dict[str, Loaded]:
    """Return by plugin what the API server that answers has loaded from files. Raises errors.ApiError."""
    read: dict[tuple[str, str, str], str] = {}
    hashes: dict[str, tuple[str, str]] = {}
    for name, listed, value in _SERIES.findall(api.get("/metrics").decode()):
        labels = dict(_LABEL.findall(listed))
        if name == HASHES:
            hashes[labels["plugin"]] = (labels["apiserver_id_hash"], labels["hash"])
        elif name == RELOADS:
            read[labels["plugin"], labels["apiserver_id_hash"], labels["status"]] = value
    return {
        plugin: Loaded(
            server,
            loaded_hash,
            float(read.get((plugin, server, "failure"), 0)) > float(read.get((plugin, server, "success"), 0)),
        )
        for plugin, (server, loaded_hash) in hashes.items()
    }


def loaded_differences(found: Mapping[str, Loaded], files: Mapping[str, str]) -> Iterator[str]:
    """Yield how what an API server has loaded differs from the files."""
    for plugin, folder in PLUGINS.items():
        wanted, has = _hash(iter([files[f"{folder}/{FILE}"].encode()])), found.get(plugin)
        if has is None:
            yield f"plugin {plugin}: start the API server with admission.yaml; it has loaded no static policies"
        elif has.hash != wanted or has.is_refused:
            why = (
                "it refused the newest file, and will not start with it: its log says why"
                if has.is_refused
                else "it reads the folder once a minute"
            )
            compared = (
                f"has {has.hash or 'no data'}, and the configuration in force makes {wanted or 'no data'}"
            )
            yield f"plugin {plugin} of API server {has.server}: {compared}; {why}"


def refusals(api: ApiClient, exported: AdmissionPolicies, guard: Guard | None) -> Iterator[str]:
    """Yield what the API server says against the objects on a dry run. Raises errors.ApiError where none is possible."""
    for each in [*exported.objects, *(guard.objects() if guard else ())]:
        kind, version = each["kind"], each["apiVersion"].rpartition("/")[2]
        plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
        path = f"/apis/{GROUP}/{version}/{plural.lower()}"
        refused = api.dry_run(path, msgspec.json.encode(each)).error
        if isinstance(refused, errors.Forbidden):
            raise refused
        # An object of that name is found only after the new one was compiled.
        if refused is not None and not isinstance(refused, errors.AlreadyExists):
            yield f"{kind}/{each['metadata']['name']}: {refused}"
