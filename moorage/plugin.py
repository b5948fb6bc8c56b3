"""What an operator's plug-in is written against: the host view, filters and weighers.

A plug-in answers one question about one host. It does no I/O, keeps no state between questions, and gets its settings
through its constructor. Answering for all hosts at once is optional: it is faster, never different.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from oslo_config import cfg

from moorage.model import RequestSpec

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HostInventory:
    """What one host has of one resource class, and how much of it is used, in the class's own units."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    used: int

    @property
    def capacity(self) -> float:
        """How much may be allocated in all."""
        return (self.total - self.reserved) * self.allocation_ratio

    @property
    def free(self) -> float:
        """How much may still be allocated; negative where the inventory is over-full."""
        return self.capacity - self.used

    def fits(self, amount: int) -> bool:
        """Tell whether ``amount`` may be allocated to one more consumer (Placement's capacity and unit rules)."""
        return (
            self.min_unit <= amount <= self.max_unit
            and amount % self.step_size == 0
            and self.used + amount <= self.capacity
        )


@dataclass(frozen=True, slots=True)
class Host:
    """One host, as it was when the decision began."""

    service_host: str
    nodename: str
    compute_node_uuid: str
    cell_uuid: str
    availability_zone: str
    up: bool
    disabled: bool
    forced_down: bool
    inventories: Mapping[str, HostInventory]
    attributes: Mapping[str, Any]


class HostView(ABC):
    """All hosts as they were when the decision began: row ``i`` of every column is host ``i``."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of hosts."""

    @abstractmethod
    def host(self, row: int) -> Host:
        """Return the host of a row."""

    @property
    @abstractmethod
    def up(self) -> BoolArray:
        """Which hosts are alive and not declared down."""

    @property
    @abstractmethod
    def enabled(self) -> BoolArray:
        """Which hosts take new servers."""

    @abstractmethod
    def capacity(self, resource_class: str) -> FloatArray:
        """How much of a class may be allocated in all; 0 where a host has none of it."""

    @abstractmethod
    def used(self, resource_class: str) -> FloatArray:
        """How much of a class is allocated."""

    @abstractmethod
    def fits(self, resource_class: str, amount: int) -> BoolArray:
        """Which hosts may allocate ``amount`` to one more consumer (capacity and unit rules)."""

    @abstractmethod
    def in_zone(self, availability_zone: str) -> BoolArray:
        """Which hosts are in an availability zone."""

    @abstractmethod
    def in_cell(self, cell_uuid: str) -> BoolArray:
        """Which hosts are in a cell."""

    @abstractmethod
    def named(self, service_hosts: Collection[str]) -> BoolArray:
        """Which hosts have one of these names, upper and lower case alike."""

    @abstractmethod
    def nodes_named(self, nodenames: Collection[str]) -> BoolArray:
        """Which hosts have a node of one of these names, upper and lower case alike."""

    def free(self, resource_class: str) -> FloatArray:
        """How much of a class may still be allocated; negative where an inventory is over-full."""
        return self.capacity(resource_class) - self.used(resource_class)


class Filter(ABC):
    """Says of a host whether it may serve a request.

    ``options`` are registered in the group ``[filters]``; their values reach the constructor by name.
    """

    options: ClassVar[Sequence[cfg.Opt]] = ()
    #: Why a host is refused, in words that follow the host's name.
    reason: ClassVar[str] = "was refused"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    @abstractmethod
    def passes(self, host: Host, request: RequestSpec) -> bool:
        """Tell whether ``host`` may serve ``request``."""

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        """Tell for each row whether it passes; overridden where all hosts can be answered for at once."""
        return np.fromiter((self.passes(view.host(row), request) for row in range(len(view))), dtype=np.bool_)


class Weigher(ABC):
    """Says how good a host is for a request; more is better.

    Weights are brought to 0..1 over the feasible hosts and multiplied by the option ``<name>_weight_multiplier`` of the
    group ``[weighers]``, so a weigher's own scale does not matter; a negative multiplier turns it round.
    """

    options: ClassVar[Sequence[cfg.Opt]] = ()
    default_multiplier: ClassVar[float] = 1.0

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    @abstractmethod
    def weigh(self, host: Host, request: RequestSpec) -> float:
        """Return the weight of ``host``."""

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        """Return the weight of each row; overridden where all hosts can be answered for at once."""
        return np.fromiter((self.weigh(view.host(row), request) for row in range(len(view))), dtype=np.float64)
