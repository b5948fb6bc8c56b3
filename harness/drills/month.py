"""The workload of a small cloud: sizes, batches, lifetimes and pauses, drawn at random from those of real clouds.

Sizes are those of Huawei-East-1, as its published charts show them. The sizes of batches, and the lifetimes up to 96
hours, are those of Azure's fleet in 2019 (AzurePublicDatasetV2). Servers that outlive 96 hours, a twelfth of all, live
for up to 90 days, where AzureTracesForPacking2020 cuts off. Their lifetimes are uniform in the logarithm: that gives
the mean lifetime of about 60 hours that Azure's figures have. Only the numbers are used, no trace.
"""

import math
import random
from itertools import pairwise

from harness.bench.packing import HUAWEI_SIZES
from moorage.model import Flavor

#: The hours of a month.
HOURS = 720.0

#: The largest size, in vCPUs, that hosts of a small cloud have room for: larger ones are 1 % of all.
_MOST_VCPUS = 8
_SIZES = [size for size in HUAWEI_SIZES if size[0] <= _MOST_VCPUS]
#: The cumulative share of batches of at most so many servers. Larger batches, 12 % of all, have ten in a small cloud.
_BATCHES = ((1, 0.47), (2, 0.638), (3, 0.713), (4, 0.764), (5, 0.791), (7, 0.837), (10, 1.0))
#: The cumulative share of servers that live for at most so many hours.
_LIFETIMES = (
    (1 / 12, 0.0),
    (1.0, 0.636),
    (1.5, 0.704),
    (2.0, 0.72),
    (3.0, 0.759),
    (4.0, 0.778),
    (6.0, 0.805),
    (8.0, 0.821),
    (12.0, 0.849),
    (16.0, 0.872),
    (24.0, 0.894),
    (48.0, 0.908),
    (96.0, 0.917),
    (2160.0, 1.0),
)
#: Between two points lifetimes are uniform in their logarithm: the bounds of each such part, its share, and the mean
#: lifetime in it.
_PARTS = [
    (low, high, share - before, (high - low) / math.log(high / low))
    for (low, before), (high, share) in pairwise(_LIFETIMES)
]
#: The mean lifetime in hours.
MEAN_LIFETIME = sum(share * mean for _low, _high, share, mean in _PARTS)
#: The least and the largest batch of each part, and its share.
_BATCH_PARTS = [
    (smaller + 1, size, share - before) for (smaller, before), (size, share) in pairwise(((0, 0.0), *_BATCHES))
]
#: The mean number of servers of a batch.
MEAN_BATCH = sum((least + most) / 2 * share for least, most, share in _BATCH_PARTS)


class MonthDraws:
    """Draws of one seed; times are in hours of the cloud."""

    def __init__(self, seed: object) -> None:
        self.chance = random.Random(str(seed))

    def flavor(self) -> Flavor:
        """Return the size of the servers of a batch."""
        vcpus, gib, _ = self.chance.choices(_SIZES, [share for *_, share in _SIZES])[0]
        return Flavor(name=f"{vcpus}-{gib}", vcpus=vcpus, memory_mb=gib * 1024, root_gb=1)

    def batch(self) -> int:
        """Return the number of servers that are requested together."""
        least, most, _ = self.chance.choices(_BATCH_PARTS, [share for *_, share in _BATCH_PARTS])[0]
        return self.chance.randint(least, most)

    def lifetime(self) -> float:
        """Return the lifetime of a new server."""
        low, high, *_ = self.chance.choices(_PARTS, [share for *_, share, _mean in _PARTS])[0]
        return float(low * (high / low) ** self.chance.random())

    def rest_of_lifetime(self) -> float:
        """Return the remaining lifetime of a server that is met at a random time.

        The longer a server lives, the likelier it is met. A cloud that begins with such remaining lifetimes has, on
        average, always the same number of servers.
        """
        low, high, *_ = self.chance.choices(_PARTS, [share * mean for *_, share, mean in _PARTS])[0]
        return self.chance.uniform(low, high) * self.chance.random()

    def pause(self, mean: float) -> float:
        """Return the hours until the next of independent events whose mean distance is ``mean`` hours."""
        return self.chance.expovariate(1.0 / mean)
