"""The weigher that keeps hosts with PCI devices for requests for them, and fills those one after the other."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import ClassVar

import numpy as np
from oslo_config import cfg

from moorage.model import RequestSpec
from moorage.plugin import Amount, FloatArray, Host, HostView, Weigher

#: The number of free devices from which on more make no difference (Nova's ``PCIWeigher``).
_MOST = 100
_CLASSES = "pci_resource_classes"


class PciWeigher(Weigher):
    """Weighs a host by the number of its free PCI devices: the fewer the better, and none is best.

    A request for a device is filtered to the hosts that have one; among them, too, the one with the fewest comes first,
    so that large sets stay together.
    """

    options: ClassVar[Sequence[cfg.Opt]] = [
        cfg.ListOpt(
            _CLASSES,
            default=["PCI_DEVICE", "SRIOV_NET_VF", "PGPU", "CUSTOM_PCI_*"],
            help="Resource classes that the pci weigher counts; * stands for any letters.",
        )
    ]

    def weigh(self, host: Host, request: RequestSpec) -> float:  # noqa: ARG002
        """Return the score of ``host``: 100 without any free device, 1 with 99 and more."""
        return float(_MOST - np.minimum(self._free(host), _MOST - 1))

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:  # noqa: ARG002
        """Return the score of each row."""
        return np.full(len(view), float(_MOST)) - np.minimum(self._free(view), _MOST - 1)

    def _free(self, hosts: Host | HostView) -> Amount:
        free: Amount = 0.0
        # Sorted, since sums of fractions depend on the order.
        for name in sorted(self._counted(hosts.resource_classes)):
            free = np.add(free, hosts.room(name))
        return free

    def _counted(self, names: Iterable[str]) -> list[str]:
        patterns: Sequence[str] = self.settings[_CLASSES]
        return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
