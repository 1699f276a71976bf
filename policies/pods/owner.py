"""The object that creates a pod: the controller of the pod, or the object that has its template."""

import msgspec


class Owner(msgspec.Struct, frozen=True):
    """The object that creates a pod. All fields are empty for a pod without owner, or an unknown owner.

    kind: "" also if the kind is not proven, because anyone can write an owner reference.
    completes: whether pods of its kind run to completion (`runsToCompletion` of `workloadKinds`).
    deadline: the seconds after which the object ends its pods; None if it has none.
    deadline_path: the path of the deadline in the object.
    name: kind and name of a controller that was looked up, such as Job/train; "" for a template.
    deadline_is_known: False if it may have a deadline that was not read.
    problem: why the deadline could not be read, "" if it was read or not needed.
    model_pods: the number of pods over which the object spreads one model, with this pod; None if the object does not say.
    model_pods_are_all: whether no other pods of the object can share the model.
    """

    kind: str = ""
    completes: bool = False
    deadline: int | None = None
    deadline_path: str = ""
    name: str = ""
    deadline_is_known: bool = True
    problem: str = ""
    model_pods: int | None = 1
    model_pods_are_all: bool = False


NO_OWNER = Owner()
