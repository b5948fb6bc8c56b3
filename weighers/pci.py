"""The weigher that keeps hosts with PCI devices for requests that need one, and fills these hosts one after another."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

import numpy as np
from oslo_config import cfg

from moorage.model import RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher

#: The score without a free device. Each free device reduces it by one, but not below 1 (Nova's ``PCIWeigher``).
_MOST = 100
_CLASSES = "pci_resource_classes"


class PciWeigher(FormulaWeigher):
    """Weighs a host by the number of its free PCI devices: the fewer the better, and none is best.

    For a request for a device, the filters leave only hosts that have one. Among these, the host with the fewest comes
    first, so that large sets stay together.
    """

    options = (
        cfg.ListOpt(
            _CLASSES,
            default=["PCI_DEVICE", "SRIOV_NET_VF", "PGPU", "CUSTOM_PCI_*"],
            help="The resource classes that the weigher pci counts. * stands for any characters.",
        ),
    )

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:  # noqa: ARG002
        """Return 100 for a host without a free device, 1 for a host with 99 or more."""
        free: Amount = 0.0
        # Sort, because a sum of floats depends on the order.
        for name in sorted(self._counted(hosts.resource_classes)):
            free = np.add(free, hosts.room(name))
        return np.subtract(_MOST, np.minimum(free, _MOST - 1))

    def _counted(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if _matches(name, tuple(self.settings[_CLASSES]))]


@lru_cache(maxsize=1024)
def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name matches a pattern; cached, because all hosts have the same few classes."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
