"""Random streams of servers for packing: sizes, lifetimes and batches as published of two large clouds.

The numbers are those of Azure's public dataset (fleet of 2019; flavors of V1) and of Huawei-East-1, as published in
tables and charts. No trace is read. The third mix is invented: few servers, most of them large, that stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Virtual CPUs and GiB, with the percentage of requests.
_HUAWEI = (
    (1, 2, 43.9),
    (1, 1, 22.0),
    (2, 4, 13.4),
    (4, 8, 9.1),
    (1, 4, 2.7),
    (8, 16, 2.7),
    (2, 8, 1.9),
    (4, 16, 1.7),
    (8, 32, 1.0),
    (16, 32, 0.8),
    (32, 64, 0.1),
)
#: The frequencies of numbers of cores are published, and the memory sizes of each, which get equal shares here.
_AZURE = (
    (1, 2, 29.0),
    (2, 4, 19.4),
    (2, 14, 9.7),
    (4, 8, 15.4),
    (4, 28, 7.6),
    (8, 16, 8.3),
    (8, 56, 4.2),
    (16, 112, 5.5),
    (32, 128, 0.5),
)
_ENTERPRISE = ((2, 8, 20.0), (4, 16, 30.0), (8, 32, 25.0), (8, 64, 15.0), (16, 128, 10.0))

#: Hours, with the share of servers with at most this lifetime; the others stay, a month on average.
_AZURE_LIVES = ((0.05, 0.0), (1, 0.636), (2, 0.72), (4, 0.778), (8, 0.821), (24, 0.894), (96, 0.917))
_HUAWEI_LIVES = ((0.05, 0.0), (6, 0.935), (24, 0.942), (84, 0.95))
_ENTERPRISE_LIVES = ((1.0, 0.0), (96, 0.1))
_RESIDENT_HOURS = 720.0
#: Sizes of batches, with the share of batches of at most this size.
_BATCHES = ((1, 0.47), (2, 0.638), (4, 0.764), (7, 0.837), (10, 0.881), (20, 0.936), (50, 1.0))


@dataclass(frozen=True)
class Mix:
    """A distribution of sizes, lifetimes and batches."""

    flavors: Sequence[tuple[int, int, float]]
    lives: Sequence[tuple[float, float]]


MIXES: Mapping[str, Mix] = {
    "azure": Mix(_AZURE, _AZURE_LIVES),
    "huawei": Mix(_HUAWEI, _HUAWEI_LIVES),
    "enterprise": Mix(_ENTERPRISE, _ENTERPRISE_LIVES),
}


@dataclass(frozen=True)
class Stream:
    """Servers in the order of their arrival; the initial ones arrive at time 0."""

    #: Virtual CPUs and MiB of each: two columns.
    requested: Floats
    #: The hour of arrival and of departure of each.
    comes: Floats
    goes: Floats
    #: The number of initial servers.
    first: int


def stream(mix: Mix, capacity: Floats, load: float, arrivals: int, seed: int) -> Stream:
    """Return servers that would use ``load`` of a cloud if all of them were placed.

    :param capacity: virtual CPUs and MiB of the whole cloud; the scarcer one counts.
    :param load: a share of the capacity.
    :param arrivals: the number of servers after the initial ones.
    """
    random = np.random.default_rng(seed)
    sizes = np.array([(cores, gigabytes * 1024) for cores, gigabytes, _ in mix.flavors], dtype=np.float64)
    shares = np.array([share for *_, share in mix.flavors])
    mean = (sizes * (shares / shares.sum())[:, np.newaxis]).sum(axis=0)
    alive = int(load * (capacity / mean).min())
    flavors, lives = _batched(random, mix, shares, arrivals)
    per_hour = alive / _mean_life(mix)
    comes = np.cumsum(random.exponential(1 / per_hour, size=arrivals))
    # The initial servers have arrived over a long time: the longer a lifetime, the likelier it is among them.
    first_flavors = random.choice(len(sizes), size=alive, p=shares / shares.sum())
    met = random.choice(lives, size=alive, p=lives / lives.sum())
    first_goes = met * random.random(alive)
    return Stream(
        requested=np.concatenate([sizes[first_flavors], sizes[flavors]]),
        comes=np.concatenate([np.zeros(alive), comes]),
        goes=np.concatenate([first_goes, comes + lives]),
        first=alive,
    )


def _batched(random: np.random.Generator, mix: Mix, shares: Floats, arrivals: int) -> tuple[Ints, Floats]:
    """Draw flavors and lifetimes, equal within a batch."""
    flavors: list[int] = []
    lives: list[float] = []
    limits, cumulated = zip(*_BATCHES, strict=True)
    while len(flavors) < arrivals:
        size = int(np.ceil(np.interp(random.random(), (0.0, *cumulated), (0.0, *limits))))
        flavor = int(random.choice(len(shares), p=shares / shares.sum()))
        life = _life(random, mix)
        flavors += [flavor] * size
        lives += list(life * random.uniform(0.9, 1.1, size=size))
    return np.array(flavors[:arrivals]), np.array(lives[:arrivals])


def _life(random: np.random.Generator, mix: Mix) -> float:
    """Draw a lifetime: its logarithm is uniform between two published points."""
    drawn = random.random()
    hours, shares = zip(*mix.lives, strict=True)
    if drawn >= shares[-1]:
        return float(hours[-1] + random.exponential(_RESIDENT_HOURS))
    return float(np.exp(np.interp(drawn, shares, np.log(hours))))


def _mean_life(mix: Mix) -> float:
    """Return the mean lifetime of many draws with a seed of their own."""
    random = np.random.default_rng(0)
    return float(np.mean([_life(random, mix) for _ in range(20_000)]))
