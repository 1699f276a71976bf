"""Files for API servers: what is in them, how they are replaced, and how they and what is loaded are compared."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.tools.export import static
from webhook.tools.export.admission_policies import ExportOptions, Object, export_policies
from webhook.tools.export.static import ADMISSION, FILE, README, Loaded, guard_objects

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GUARD = guard_objects(["system:serviceaccount:flux-system:helm-controller"], "gpu-breakers")
VALIDATING, MUTATING = f"validating/{FILE}", f"mutating/{FILE}"
OF_A_AND_B = "sha256:8fb20ef63ced4145fc2e983ffe597d1dcff39154c3bf21f0fa9dde6a0c50fdc9"
"""printf 'a\0b\0' | sha256sum"""


def files(guard: Sequence[Object] = GUARD, now: datetime = NOW) -> dict[str, str]:
    made = export_policies(load_directory(None), ExportOptions(now=now))
    return static.static_files([*guard, *made.objects], made.version)


@pytest.mark.parametrize(("path", "plugin"), [(VALIDATING, "Validating"), (MUTATING, "Mutating")])
def test_a_folder_has_the_kinds_of_its_plugin_under_names_of_files(path: str, plugin: str) -> None:
    made = list(yaml.safe_load_all(files()[path]))

    assert {each["kind"] for each in made} == {f"{plugin}AdmissionPolicy", f"{plugin}AdmissionPolicyBinding"}
    for each in made:
        assert each["metadata"]["name"].endswith(".static.k8s.io")
        assert each["spec"].get("policyName", each["metadata"]["name"]) == each["metadata"]["name"]
        assert not {"paramKind", "paramRef"} & set(each["spec"])


def test_the_guard_is_there_if_somebody_may_break_it() -> None:
    name = "gpu-admission.guard.static.k8s.io"

    assert (name in files()[VALIDATING], name in files(())[VALIDATING]) == (True, False)
    guard = guard_objects(["flux"], "gpu-breakers")
    assert "only flux or a member of group gpu-breakers" in files(guard)[VALIDATING]


@pytest.mark.parametrize("path", [VALIDATING, MUTATING])
def test_each_file_says_what_made_it(path: str) -> None:
    version = load_directory(None).version

    assert files()[path].partition("\n")[0] == (
        f"# Of configuration {version}, by gpu-admission export --static: export again, never edit."
    )


@cases(
    ("namespace", "user"),
    where_the_chart_installs=(
        "gpu-admission",
        "system:serviceaccount:gpu-admission:gpu-admission-controller",
    ),
    elsewhere=("platform", "system:serviceaccount:platform:gpu-admission-controller"),
)
def test_the_controller_of_the_installation_may_renew_bundles(namespace: str, user: str) -> None:
    guard = guard_objects([], "gpu-breakers", namespace)

    validation = guard[0]["spec"]["validations"][0]["expression"]

    writers = f"['{user}', 'system:serviceaccount:cert-manager:cert-manager-cainjector']"
    assert (
        " ".join(validation.split())
        == f"request.userInfo.username in {writers} && variables.changesOnlyBundles"
    )


def test_the_same_documents_make_the_same_bytes() -> None:
    assert files(now=datetime(2027, 1, 1, tzinfo=UTC)) == files()


def test_a_folder_without_policies_has_an_empty_file() -> None:
    assert static.static_files(GUARD, "3")[MUTATING] == ""


@cases(
    ("contents", "want"),
    nothing=({}, ""),
    only_an_empty_file=({"a.yaml": ""}, ""),
    ours_and_that_of_others=({FILE: "b", "a.yaml": "a"}, OF_A_AND_B),
    by_name=({FILE: "a", "z.json": "b", "h.yml": ""}, OF_A_AND_B),
    others_are_not_read=({FILE: "b", "a.YML": "a", ".gpu-admission.yaml.new": "x", "README.md": "x"}, OF_A_AND_B),
)  # fmt: skip
def test_the_hash_of_a_folder(contents: dict[str, str], want: str, tmp_path: Path) -> None:
    (tmp_path / "validating").mkdir()
    for name, content in contents.items():
        (tmp_path / "validating" / name).write_text(content)

    assert list(static.folder_hashes(tmp_path).values()) == [want, ""]


def test_files_are_replaced_and_folders_stay(tmp_path: Path) -> None:
    static.write(tmp_path, {VALIDATING: "old", README: ""})
    folder, file = (tmp_path / "validating").stat().st_ino, (tmp_path / VALIDATING).stat().st_ino

    static.write(tmp_path, {VALIDATING: "new", README: ""})

    assert (tmp_path / VALIDATING).read_text() == "new"
    assert (tmp_path / "validating").stat().st_ino == folder
    assert (tmp_path / VALIDATING).stat().st_ino != file
    assert [each.name for each in (tmp_path / "validating").iterdir()] == [FILE]


def test_nothing_is_replaced_if_one_cannot_be_written(tmp_path: Path) -> None:
    static.write(tmp_path, {VALIDATING: "old", README: ""})
    (tmp_path / "mutating").write_text("a file in the place of the folder")

    with pytest.raises(OSError, match="mutating"):
        static.write(tmp_path, {VALIDATING: "new", MUTATING: "new", README: ""})

    assert (tmp_path / VALIDATING).read_text() == "old"
    assert [each.name for each in (tmp_path / "validating").iterdir()] == [FILE]


def test_differences_name_each_file_and_what_to_do(tmp_path: Path) -> None:
    made = files()
    static.write(tmp_path, made)
    (tmp_path / "mutating/of-others.json").write_text("{}")
    assert list(static.differences(tmp_path, made)) == []
    (tmp_path / MUTATING).write_text("")
    (tmp_path / VALIDATING).unlink()
    (tmp_path / ADMISSION).unlink()

    assert list(static.differences(tmp_path, made)) == [
        f"{tmp_path}/{VALIDATING}: export again: it does not exist",
        f"{tmp_path}/{MUTATING}: export again with the same options: the configuration in force makes another one",
        f"{tmp_path}/admission.yaml: export again: it does not exist",
    ]


def test_a_directory_without_any_of_the_files_differs_in_each(tmp_path: Path) -> None:
    paths = [each.partition(": ")[0] for each in static.differences(tmp_path / "none", files())]

    assert paths == [f"{tmp_path}/none/{each}" for each in (VALIDATING, MUTATING, ADMISSION)]


OURS = files()[ADMISSION]
OTHER = (
    "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- {name: PodSecurity}\n"
)


@cases(
    ("text", "lacking"),
    ours=(OURS, []),
    mounted_elsewhere=(OURS.replace("/etc/kubernetes/gpu-admission", "/var/lib/policies"), []),
    with_another_plugin=(f"{OURS}- {{name: PodSecurity}}\n", []),
    only_another_plugin=(OTHER, ["Validating", "Mutating"]),
    another_folder=(OURS.replace("gpu-admission/mutating", "elsewhere"), ["Mutating"]),
    no_yaml=("plugins: [", ["Validating", "Mutating"]),
    no_object=("[]", ["Validating", "Mutating"]),
    other_forms=(
        "plugins: [PodSecurity, {name: MutatingAdmissionPolicy, configuration: x}]",
        ["Validating", "Mutating"],
    ),
)
def test_an_admission_configuration_is_left_as_it_is(text: str, lacking: list[str], tmp_path: Path) -> None:
    (tmp_path / ADMISSION).write_text(text)
    static.write(tmp_path, files())

    assert (tmp_path / ADMISSION).read_text() == text
    assert list(static.differences(tmp_path, files())) == [
        f"{tmp_path}/admission.yaml: add plugin {each}AdmissionPolicy with staticManifestsDir: "
        f"/etc/kubernetes/gpu-admission/{each.lower()}, as README.md says"
        for each in lacking
    ]


def test_the_readme_of_others_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# My cluster\n")

    with pytest.raises(FileExistsError, match="is another one: name a directory for these files only"):
        static.write(tmp_path, files())
    assert [each.name for each in tmp_path.iterdir()] == ["README.md"]


def test_files_can_be_read_by_an_api_server_that_is_not_root(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        static.write(tmp_path, files())
    finally:
        os.umask(before)

    assert (tmp_path / VALIDATING).stat().st_mode & 0o777 == 0o644
    assert (tmp_path / VALIDATING).parent.stat().st_mode & 0o777 == 0o755


def test_what_is_loaded(tmp_path: Path) -> None:
    static.write(tmp_path, files())
    validating, mutating = static.folder_hashes(tmp_path).values()
    validator, mutator = "ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"

    def said(loaded: dict[str, Loaded]) -> list[str]:
        return list(static.loaded_differences(loaded, static.folder_hashes(tmp_path)))

    same = {validator: Loaded("sha256:a", validating, False), mutator: Loaded("sha256:a", mutating, False)}
    assert said(same) == []
    assert said({validator: same[validator]}) == [
        f"plugin {mutator}: start the API server with admission.yaml; it has loaded no static policies"
    ]
    assert said({**same, mutator: Loaded("sha256:a", "sha256:b", True)}) == [
        f"plugin {mutator} of API server sha256:a: has sha256:b, the folder here {mutating}; "
        "it rejected the newest file, and will not start with it: its log says why"
    ]
    assert said({**same, mutator: Loaded("sha256:a", "", False)}) == [
        f"plugin {mutator} of API server sha256:a: has no data, the folder here {mutating}; "
        "put the folder on its control plane node, where it is read once a minute"
    ]
    assert len(said({**same, mutator: Loaded("sha256:a", mutating, True)})) == 1, "it will not start again"
