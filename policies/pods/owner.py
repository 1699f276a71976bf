"""What is known of the object that makes a pod: its controller, or of a template the object that has it."""

import msgspec


class Owner(msgspec.Struct, frozen=True):
    """The object that makes a pod; without fields, of a pod by itself, or of an object of which nothing is known.

    kind: "" also where the kind is not proven, because anyone can write an owner reference.
    completes: whether pods of its kind run to completion (`runsToCompletion` of `workloadKinds`).
    deadline: the seconds after which it ends its pods, by its own wish; None if it has none.
    path: the path of the deadline in the object.
    name: kind and name of a controller that was asked for, such as Job/train; "" of templates.
    is_known: False if it may have a deadline that was not read.
    problem: why the deadline could not be read, "" if it was, or if nothing tried to.
    """

    kind: str = ""
    completes: bool = False
    deadline: int | None = None
    path: str = ""
    name: str = ""
    is_known: bool = True
    problem: str = ""


NO_OWNER = Owner()
