"""Cards as their drivers describe them: names, memory, processors, and what MIG makes of them.

Memory and processors are what NVML says of a profile (`nvidia-smi mig -lgip`), those of H200 and B200 to some MiB. They are
less than the name says, and processors come to less than all: so counters weigh less than sevenths, of an H100 an eighth.
"""

from typing import NamedTuple


class Profile(NamedTuple):
    """`identity`: of the GPU instance profile. `starts`: the memory slices at which a placement begins; each takes `size`."""

    name: str
    identity: int
    mib: int
    processors: int
    size: int
    starts: tuple[int, ...]


class Card(NamedTuple):
    """`profiles` are empty where a card cannot be partitioned, or its driver has not read how. The last one is the whole card."""

    product: str
    architecture: str
    capability: str
    mib: int
    profiles: tuple[Profile, ...] = ()


def _profiles(small: str, large: str, half: str, whole: str, *rows: tuple[int, int]) -> tuple[Profile, ...]:
    """Return the seven profiles of a card with eight memory slices. Names are of 1g, 2g (which 1g also has), 3g (4g), 7g.

    rows: MiB and processors of 1g, 1g with the memory of 2g, 2g, 3g, 4g, 7g.
    """
    one, wide, two, three, four, seven = rows
    anywhere = tuple(range(7))
    return (
        Profile(f"1g.{small}", 19, *one, 1, anywhere),
        Profile(f"1g.{small}+me", 20, *one, 1, anywhere),
        Profile(f"1g.{large}", 15, *wide, 2, (0, 2, 4, 6)),
        Profile(f"2g.{large}", 14, *two, 2, (0, 2, 4)),
        Profile(f"3g.{half}", 9, *three, 4, (0, 4)),
        Profile(f"4g.{half}", 5, *four, 4, (0,)),
        Profile(f"7g.{whole}", 0, *seven, 8, (0,)),
    )


A100_40 = Card(
    "NVIDIA A100-SXM4-40GB",
    "Ampere",
    "8.0.0",
    40960,
    _profiles(
        *("5gb", "10gb", "20gb", "40gb"),
        *((4864, 14), (9984, 14), (9984, 28), (20096, 42), (20096, 56), (40320, 98)),
    ),
)
A100_80 = Card(
    "NVIDIA A100-SXM4-80GB",
    "Ampere",
    "8.0.0",
    81920,
    _profiles(
        *("10gb", "20gb", "40gb", "80gb"),
        *((9728, 14), (19968, 14), (19968, 28), (40192, 42), (40192, 56), (80640, 98)),
    ),
)
H100 = Card(
    "NVIDIA H100 80GB HBM3",
    "Hopper",
    "9.0.0",
    81559,
    _profiles(
        *("10gb", "20gb", "40gb", "80gb"),
        *((9984, 16), (20096, 26), (20096, 32), (40448, 60), (40448, 64), (81152, 132)),
    ),
)
H200 = Card(
    "NVIDIA H200",
    "Hopper",
    "9.0.0",
    143771,
    _profiles(
        *("18gb", "35gb", "71gb", "141gb"),
        *((16384, 16), (33280, 26), (33280, 32), (71424, 60), (71424, 64), (143104, 132)),
    ),
)
B200 = Card(
    "NVIDIA B200",
    "Blackwell",
    "10.0.0",
    183359,
    _profiles(
        *("23gb", "45gb", "90gb", "180gb"),
        *((21504, 18), (44544, 36), (44544, 36), (91136, 70), (91136, 72), (182784, 148)),
    ),
)
X900 = Card(
    "Example X900",
    "Example",
    "12.0.0",
    122880,
    _profiles(
        *("15gb", "30gb", "60gb", "120gb"),
        *((14336, 18), (29696, 24), (29696, 36), (60416, 72), (60416, 80), (121856, 160)),
    ),
)
"""No GPUClass names it."""
L4 = Card("NVIDIA L4", "Ada Lovelace", "8.9.0", 23034)
T4 = Card("Tesla T4", "Turing", "7.5.0", 15360)
PARTITIONED = (A100_40, A100_80, H100, H200, B200, X900)
WHOLE = (L4, T4)
