"""Which classes a namespace may use, and which an autoscaler adds."""

from msgspec.structs import replace

from policies.placement.class_options import ClassOptions
from policies.rule import Mode
from policies.rules.gpu_class import GPUClassOptions, class_options
from tests.builders import CLASSES, context
from tests.cases import cases

EVERY = ["amd-mi300x", "nvidia-a100-40gb", "nvidia-a100-80gb", "nvidia-t4"]


@cases(
    ("allowed", "want", "is_restricted"),
    every_class=(("*",), EVERY, False),
    every_class_beside_one=(("nvidia-t4", "*"), EVERY, False),
    by_name=(("nvidia-a100-80gb",), ["nvidia-a100-80gb"], True),
    by_family=(("nvidia-a100",), ["nvidia-a100-40gb", "nvidia-a100-80gb"], True),
    by_a_glob=(("*-80gb", "amd-*"), ["amd-mi300x", "nvidia-a100-80gb"], True),
    a_part_of_a_name_is_no_glob=(("nvidia",), [], True),
    case_matters=(("NVIDIA-T4",), [], True),
    none=((), [], True),
)
def test_which_classes_a_namespace_may_use(
    allowed: tuple[str, ...], want: list[str], is_restricted: bool
) -> None:
    use = ClassOptions(allowed=allowed)

    assert [each.name for each in CLASSES if use.allows(each)] == want
    assert use.is_restricted is is_restricted


@cases(
    ("globs", "want"),
    none_unless_the_policy_says_so=((), []),
    by_name_or_family=(("nvidia-t4", "nvidia-a100"), ["nvidia-a100-40gb", "nvidia-a100-80gb", "nvidia-t4"]),
    by_a_glob=(("amd-*",), ["amd-mi300x"]),
)
def test_which_classes_an_autoscaler_adds(globs: tuple[str, ...], want: list[str]) -> None:
    use = ClassOptions(autoscaled_classes=globs)

    assert [each.name for each in CLASSES if use.is_autoscaled(each)] == want


RESTRICTED = GPUClassOptions(allowed=("nvidia-t4",), default="nvidia-t4", autoscaled_classes=("amd-*",))
AS_WRITTEN = ClassOptions(allowed=("nvidia-t4",), default="nvidia-t4", autoscaled_classes=("amd-*",))


@cases(
    ("options", "made_by_daemonset", "want"),
    enforced=(RESTRICTED, False, AS_WRITTEN),
    in_mode_warn_the_annotation_has_no_effect=(
        replace(RESTRICTED, mode=Mode.WARN),
        False,
        replace(AS_WRITTEN, reads_annotation=False),
    ),
    pods_of_a_daemonset_are_on_every_node=(RESTRICTED, True, replace(AS_WRITTEN, reads_annotation=False)),
    disabled_every_class_is_allowed=(None, False, ClassOptions(reads_annotation=False)),
)
def test_the_policy_says_which(
    options: GPUClassOptions | None, made_by_daemonset: bool, want: ClassOptions
) -> None:
    found = class_options(context(options_of=lambda _: options, made_by_daemonset=made_by_daemonset))

    assert found == want
