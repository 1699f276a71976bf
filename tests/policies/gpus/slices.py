"""The label values of MIG slices of a node."""


def slices(number: int, first: int = 0) -> dict[str, str]:
    return {f"nvidia.com/mig-{1 + n % 7}g.{5 + n}gb": "1" for n in range(first, first + number)}
