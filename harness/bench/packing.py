"""Benchmark of packing formulas: hosts in use, refused requests, and fragmentation of free resources.

A simulation in one process: servers come and go on hosts of three kinds, and each formula places the same stream. A
formula gets the same data about a host as a weigher: capacity, use, and the request.

The streams are random, with published sizes, lifetimes and batches of two large clouds: the numbers are from the tables
and charts of Azure's public dataset (fleet of 2019; flavors of V1) and of Huawei-East-1. No trace is read. The third
mix is invented: few servers, most of them large, with long lifetimes.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Virtual CPUs and MiB of each kind of host, and how many of eight hosts are of this kind.
_KINDS = ((64, 256 * 1024, 4), (64, 512 * 1024, 2), (32, 128 * 1024, 2))
#: The large request by which fragmentation is measured.
_LARGE = np.array([16.0, 64 * 1024.0])
#: The number of samples of the cloud's state during a run.
_LOOKS = 200

#: Virtual CPUs and GiB, with the percentage of requests.
HUAWEI_SIZES = (
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
#: The frequencies of core counts are published, and the memory sizes for each; here, these sizes are equally frequent.
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

#: Hours, with the share of servers that live at most so long; the others live for a month on average.
_AZURE_LIVES = ((0.05, 0.0), (1, 0.636), (2, 0.72), (4, 0.778), (8, 0.821), (24, 0.894), (96, 0.917))
_HUAWEI_LIVES = ((0.05, 0.0), (6, 0.935), (24, 0.942), (84, 0.95))
_ENTERPRISE_LIVES = ((1.0, 0.0), (96, 0.1))
_RESIDENT_HOURS = 720.0
#: Sizes of batches, with the share of batches that are at most so large.
_BATCHES = ((1, 0.47), (2, 0.638), (4, 0.764), (7, 0.837), (10, 0.881), (20, 0.936), (50, 1.0))

#: Scores each host for a request by use and capacity (a row for each class, a column for each host).
Formula = Callable[[Floats, Floats, Floats], Floats]


@dataclass(frozen=True)
class PackingRun:
    """The result of one run: percentages, averaged over its duration."""

    #: The used share of the scarcer class.
    used_percent: float
    #: The share of hosts with at least one server.
    hosts_open_percent: float
    #: The share of requests without a host.
    refused_percent: float
    #: The share of requested virtual CPUs that was refused: large requests are refused first.
    refused_cpu_percent: float
    #: The number of large requests that fit, relative to the number that would fit if all free resources were on one
    #: host.
    large_fit_percent: float


@dataclass(frozen=True)
class PackingResult(PackingRun):
    """The average of one formula and load over all seeds; the names are those of `moorage bench packing -f json`."""

    mix: str
    #: The average use of the scarcer class if no request were refused.
    load_percent: float
    formula: str


# --- Streams of servers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mix:
    """A distribution of sizes, lifetimes and batches."""

    flavors: Sequence[tuple[int, int, float]]
    lives: Sequence[tuple[float, float]]


MIXES: Mapping[str, Mix] = {
    "azure": Mix(_AZURE, _AZURE_LIVES),
    "huawei": Mix(HUAWEI_SIZES, _HUAWEI_LIVES),
    "enterprise": Mix(_ENTERPRISE, _ENTERPRISE_LIVES),
}


@dataclass(frozen=True)
class Stream:
    """Servers in the order of their arrival; the initial ones arrive at time 0."""

    #: Virtual CPUs and MiB of each: two columns.
    requested: Floats
    #: The hours of arrival and of departure of each.
    comes: Floats
    goes: Floats
    #: The number of initial servers.
    first: int


def stream(mix: Mix, capacity: Floats, load: float, arrivals: int, seed: int) -> Stream:
    """Return servers that would use ``load`` of a cloud if all of them were placed.

    :param capacity: virtual CPUs and MiB of the whole cloud; the scarcer class counts.
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
    # The initial servers arrived over a long time: the longer a lifetime, the more frequent it is among them.
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
    """Draw flavors and lifetimes, which are equal within a batch."""
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


# --- Formulas -------------------------------------------------------------------------------------------------------


def _spread(used: Floats, capacity: Floats, requested: Floats) -> Floats:  # noqa: ARG001
    free = capacity - used
    scaled: Floats = (free / np.maximum(free.max(axis=1), 1.0)[:, np.newaxis]).sum(axis=0)
    return scaled


def _least_free_ram(used: Floats, capacity: Floats, requested: Floats) -> Floats:  # noqa: ARG001
    left: Floats = used[1] - capacity[1]
    return left


def _of_shares(score: Callable[[Floats], Floats]) -> Formula:
    """Return a formula of the used share of each class once the request is placed."""
    return lambda used, capacity, requested: score((used + requested[:, np.newaxis]) / capacity)


def _balanced(penalty: float) -> Formula:
    """Return a formula with a penalty on the difference between the fullest and the emptiest class."""
    return _of_shares(lambda shares: shares.mean(axis=0) - penalty * (shares.max(axis=0) - shares.min(axis=0)))


def _open_first(formula: Formula) -> Formula:
    """Return a formula that scores every empty host below all used ones."""

    def scores(used: Floats, capacity: Floats, requested: Floats) -> Floats:
        score = formula(used, capacity, requested)
        return np.where(used.any(axis=0), score, score - 10.0)

    return scores


_DOMINANT_SHARE = _of_shares(lambda shares: shares.max(axis=0))
_MEAN_SHARE = _of_shares(lambda shares: shares.mean(axis=0))
_LEAST_LEFT = _of_shares(lambda shares: -((1 - shares) ** 2).sum(axis=0))

FORMULAS: Mapping[str, Formula] = {
    "spread": _spread,
    "least free RAM": _least_free_ram,
    "dominant share": _DOMINANT_SHARE,
    "mean share": _MEAN_SHARE,
    "least left, squared": _LEAST_LEFT,
    "mean share less imbalance": _balanced(1.0),
    "dominant share, open first": _open_first(_DOMINANT_SHARE),
    "mean share, open first": _open_first(_MEAN_SHARE),
    "least left, squared, open first": _open_first(_LEAST_LEFT),
    "mean share less half the imbalance, open first": _open_first(_balanced(0.5)),
    "mean share less imbalance, open first": _open_first(_balanced(1.0)),
}


# --- Simulation -----------------------------------------------------------------------------------------------------


def measure(hosts: int, arrivals: int, loads: Sequence[float], seeds: int) -> Iterator[PackingResult]:
    """Place the same streams by each formula, for each mix, share of the capacity, and seed."""
    capacity = _capacity(hosts)
    for mix_name, mix in MIXES.items():
        for load in loads:
            streams = [stream(mix, capacity.sum(axis=1), load, arrivals, seed) for seed in range(seeds)]
            for name, formula in FORMULAS.items():
                runs = [_SimulatedHosts(capacity, seed).run(servers, formula) for seed, servers in enumerate(streams)]
                means = {of: fmean([asdict(run)[of] for run in runs]) for of in asdict(runs[0])}
                yield PackingResult(mix=mix_name, load_percent=round(100 * load, 1), formula=name, **means)


def _capacity(hosts: int) -> Floats:
    kinds = [kind[:2] for kind in _KINDS for _ in range(kind[2])]
    return np.array([kinds[number % len(kinds)] for number in range(hosts)], dtype=np.float64).T


class _SimulatedHosts:
    def __init__(self, capacity: Floats, seed: int) -> None:
        self._capacity = capacity
        self._used = np.zeros_like(capacity)
        # Hosts with equal scores are taken in random order, as by the scheduler.
        self._ties = np.random.default_rng(seed).permutation(capacity.shape[1]) * 1e-9
        self._leaving: list[tuple[float, int, int]] = []

    def run(self, servers: Stream, formula: Formula) -> PackingRun:
        """Place all servers in their order, and return the result without the initial phase."""
        refused = refused_cpus = 0.0
        used, open_hosts, large = [], [], []
        arrivals = len(servers.requested) - servers.first
        for number, requested in enumerate(servers.requested):
            while self._leaving and self._leaving[0][0] <= servers.comes[number]:
                _, gone, host = heapq.heappop(self._leaving)
                self._used[:, host] -= servers.requested[gone]
            placed = self._place(number, requested, servers.goes[number], formula)
            if number < servers.first:
                continue
            if not placed:
                refused += 1
                refused_cpus += requested[0]
            if (number - servers.first) % max(1, arrivals // _LOOKS) == 0:
                used.append(float((self._used.sum(axis=1) / self._capacity.sum(axis=1)).max()))
                open_hosts.append(float(self._used.any(axis=0).mean()))
                large.append(self._large_fit())
        return PackingRun(
            used_percent=100 * fmean(used),
            hosts_open_percent=100 * fmean(open_hosts),
            refused_percent=100 * refused / arrivals,
            refused_cpu_percent=100 * refused_cpus / float(servers.requested[servers.first :, 0].sum()),
            large_fit_percent=100 * fmean(large),
        )

    def _place(self, number: int, requested: Floats, goes: float, formula: Formula) -> bool:
        fits = (self._used + requested[:, np.newaxis] <= self._capacity).all(axis=0)
        if not fits.any():
            return False
        scores = np.where(fits, formula(self._used, self._capacity, requested) + self._ties, -np.inf)
        host = int(scores.argmax())
        self._used[:, host] += requested
        heapq.heappush(self._leaving, (goes, number, host))
        return True

    def _large_fit(self) -> float:
        free = self._capacity - self._used
        whole = np.floor((free.sum(axis=1) / _LARGE).min())
        pieces = np.floor((free / _LARGE[:, np.newaxis]).min(axis=0)).sum()
        return float(pieces / whole) if whole else 1.0
