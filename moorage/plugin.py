"""What an operator's plug-in is written against: the host view, filters and weighers; and request filters.

A plug-in answers one question about one host. It does no I/O, keeps no state between questions, and gets its settings
through its constructor. Answering for all hosts at once is optional: it is faster, never different.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from oslo_config import cfg

from moorage.described import BadValue as BadValue
from moorage.described import attribute, is_one_of, number, smallest, values_under
from moorage.described import measured as measured
from moorage.model import RequestSpec
from moorage.request_filter import Aggregate as Aggregate
from moorage.request_filter import Cloud as Cloud
from moorage.request_filter import RequestFilter as RequestFilter
from moorage.request_filter import RequestRefused as RequestRefused

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: Yes or no: of one host, or of each of all hosts.
Answer = bool | np.bool_ | BoolArray
#: A number: of one host, or of each of all hosts.
Amount = int | float | IntArray | FloatArray


@dataclass(frozen=True, slots=True)
class HostInventory:
    """What one provider has of one resource class, and how much of it is used, in the class's own units."""

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
    """One host, as it was when the decision began: its providers, and the pools that share with it, taken together.

    What may be asked of it is what may be asked of all hosts at once (:class:`HostView`), by the same names. A pool
    counts in full for every host that it shares with.
    """

    service_host: str
    nodename: str
    compute_node_uuid: str
    cell_uuid: str
    availability_zone: str
    up: bool
    disabled: bool
    forced_down: bool
    #: Of each resource class one for every provider that has it.
    inventories: Mapping[str, Sequence[HostInventory]]
    attributes: Mapping[str, Any]
    #: All traits of all of them, and those of the root of the host's own tree.
    traits: Collection[str] = frozenset()
    root_traits: Collection[str] = frozenset()
    #: All aggregates that any of them belongs to, and those of the root of the host's own tree.
    aggregates: Collection[str] = frozenset()
    root_aggregates: Collection[str] = frozenset()
    #: The uuids of all of them.
    providers: Collection[str] = frozenset()
    #: Whether one provider is all there is: then whatever fits the host fits that provider.
    flat: bool = True
    #: How many members of the request's server group are on it, and how many on other hosts. A member that moves counts
    #: on both of its hosts, one that is asked for itself on none. On hosts that are forced down none counts elsewhere.
    group_members_here: int = 0
    group_members_elsewhere: int = 0
    #: Of each key of the metadata of its host aggregates, the values that they give it.
    metadata: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: How many servers are placed on it, and how many of them are being started, moved or rebuilt there right now.
    instances: int = 0
    io_ops: int = 0
    #: How many builds have failed on it lately: each counts less as time goes by, and as others succeed.
    failed_builds: float = 0.0
    #: How many of its servers run from an image with a property, by ``name=value``.
    image_properties: Mapping[str, int] = field(default_factory=dict)
    #: Those of the servers that the request's hints name which are placed on it.
    neighbours: frozenset[str] = frozenset()

    def attribute(self, path: str) -> Any:
        """Return what its driver says of it under a name, or under names within each other joined by dots, or None.

        A name that has dots itself is found as well.
        """
        return attribute(self.attributes, path)

    def where_attribute(self, path: str, holds: Callable[[Any], bool]) -> bool:
        """Tell whether what its driver says under ``path`` is such as it shall be; it may be None."""
        return bool(holds(self.attribute(path)))

    def where_metadata(self, key: str, holds: Callable[[frozenset[str]], bool]) -> bool:
        """Tell whether the values that its host aggregates give a key are such as they shall be; there may be none."""
        return bool(holds(self.metadata.get(key, frozenset())))

    def where_metadata_under(self, prefix: str, holds: Callable[[frozenset[str]], bool]) -> bool:
        """Tell the same of the values of all keys that begin with ``prefix``, taken together."""
        return bool(holds(values_under(self.metadata, prefix)))

    def number(self, path: str, absent: float = 0.0) -> float:
        """Return what its driver says under ``path``, as a number.

        :raises BadValue: it is none.
        """
        return number(path, self.attribute(path), absent)

    def number_from(self, path: str, reckon: Callable[[Any], float]) -> float:
        """Return the number that stands for what its driver says under ``path``, which may be None."""
        return reckon(self.attribute(path))

    def metadata_number(self, key: str, default: float) -> float:
        """Return the smallest of the values that its host aggregates give a key.

        :raises BadValue: one of them is no number.
        """
        return smallest(key, self.metadata.get(key, frozenset()), default)

    def has_neighbour(self, instance_uuids: Collection[str]) -> bool:
        """Tell whether one of these servers, which the request's hints name, is placed on it."""
        return not self.neighbours.isdisjoint(instance_uuids)

    def servers_with(self, name: str, value: str) -> int:
        """Return how many of its servers run from an image with this property."""
        return self.image_properties.get(f"{name}={value}", 0)

    def fits(self, resource_class: str, amount: int) -> bool:
        """Tell whether ``amount`` may be allocated to one more consumer from one provider at least."""
        return any(inventory.fits(amount) for inventory in self._inventories(resource_class))

    def fitting(self, resource_class: str, amount: int) -> int:
        """Return from how many providers ``amount`` may be allocated to one more consumer."""
        return sum(inventory.fits(amount) for inventory in self._inventories(resource_class))

    def capacity(self, resource_class: str) -> float:
        """Return how much of a class may be allocated in all; 0 where there is none of it."""
        return sum((inventory.capacity for inventory in self._inventories(resource_class)), 0.0)

    def used(self, resource_class: str) -> float:
        """Return how much of a class is allocated."""
        return sum((inventory.used for inventory in self._inventories(resource_class)), 0.0)

    def free(self, resource_class: str) -> float:
        """Return how much of a class may still be allocated; negative where it is over-full."""
        return self.capacity(resource_class) - self.used(resource_class)

    def room(self, resource_class: str) -> float:
        """Return the same, where an over-full provider takes nothing away from the others."""
        return sum((max(inventory.free, 0.0) for inventory in self._inventories(resource_class)), 0.0)

    def has_trait(self, trait: str) -> bool:
        """Tell whether any of its providers has a trait."""
        return trait in self.traits

    def root_has_trait(self, trait: str) -> bool:
        """Tell whether the root of its tree has a trait."""
        return trait in self.root_traits

    def in_aggregate(self, aggregate: str) -> bool:
        """Tell whether any of its providers belongs to an aggregate."""
        return aggregate in self.aggregates

    def root_in_aggregate(self, aggregate: str) -> bool:
        """Tell whether the root of its tree belongs to an aggregate."""
        return aggregate in self.root_aggregates

    def has_provider(self, uuid: str) -> bool:
        """Tell whether a provider is one of its own, or of a tree that shares with it."""
        return uuid in self.providers

    @property
    def resource_classes(self) -> Collection[str]:
        """Of what resource classes it has any inventory."""
        return self.inventories.keys()

    def in_zone(self, availability_zone: str) -> bool:
        """Tell whether it is in an availability zone."""
        return self.availability_zone == availability_zone

    def in_cell(self, cell_uuid: str) -> bool:
        """Tell whether it is in a cell."""
        return self.cell_uuid == cell_uuid

    def named(self, service_hosts: Collection[str]) -> bool:
        """Tell whether it has one of these names, upper and lower case alike."""
        return is_one_of(self.service_host, service_hosts)

    def nodes_named(self, nodenames: Collection[str]) -> bool:
        """Tell whether its node has one of these names, upper and lower case alike."""
        return is_one_of(self.nodename, nodenames)

    def _inventories(self, resource_class: str) -> Sequence[HostInventory]:
        return self.inventories.get(resource_class, ())


class HostView(ABC):
    """All hosts as they were when the decision began: row ``i`` of every column is host ``i``.

    A host is its own providers and the pools that share with it, taken together. Whether the groups of a request can be
    served is worked out later, for the best hosts: until then these columns say what is possible at most, and for
    :attr:`flat` hosts exactly.
    """

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

    @property
    @abstractmethod
    def flat(self) -> BoolArray:
        """Which hosts are one provider, with which no pool shares."""

    @property
    @abstractmethod
    def group_members_here(self) -> IntArray:
        """How many members of the request's server group are on each host; none, where it has no group."""

    @property
    @abstractmethod
    def group_members_elsewhere(self) -> IntArray:
        """How many of them are on other hosts than this one."""

    @property
    @abstractmethod
    def instances(self) -> IntArray:
        """How many servers are placed on each host."""

    @property
    @abstractmethod
    def io_ops(self) -> IntArray:
        """How many servers are being started, moved or rebuilt on each host right now."""

    @property
    @abstractmethod
    def failed_builds(self) -> FloatArray:
        """How many builds have failed on each host lately: each counts less with time, and as others succeed."""

    @abstractmethod
    def where_attribute(self, path: str, holds: Callable[[Any], bool]) -> BoolArray:
        """Which hosts' drivers say under ``path`` what is such as it shall be; each value is asked about once."""

    @abstractmethod
    def where_metadata(self, key: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Which hosts' aggregates give a key values that are such as they shall be; each set is asked about once."""

    @abstractmethod
    def where_metadata_under(self, prefix: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Tell the same of the values of all keys that begin with ``prefix``, taken together."""

    @abstractmethod
    def number(self, path: str, absent: float = 0.0) -> FloatArray:
        """Return what the hosts' drivers say under ``path``, as numbers.

        :raises BadValue: one of them is none.
        """

    @abstractmethod
    def number_from(self, path: str, reckon: Callable[[Any], float]) -> FloatArray:
        """Return the numbers that stand for what the drivers say under ``path``; each value is asked about once.

        :param reckon: a function of a module, not one that is made for a request: what it has said is kept.
        """

    @abstractmethod
    def metadata_number(self, key: str, default: float) -> FloatArray:
        """Return the smallest of the values that each host's aggregates give a key.

        :raises BadValue: one of them is no number.
        """

    @abstractmethod
    def has_neighbour(self, instance_uuids: Collection[str]) -> BoolArray:
        """Which hosts have one of these servers, which the request's hints name, placed on them."""

    @abstractmethod
    def servers_with(self, name: str, value: str) -> IntArray:
        """How many servers of each host run from an image with this property."""

    @property
    @abstractmethod
    def resource_classes(self) -> Collection[str]:
        """Of what resource classes any host has inventory."""

    @abstractmethod
    def capacity(self, resource_class: str) -> FloatArray:
        """How much of a class may be allocated in all; 0 where a host has none of it."""

    @abstractmethod
    def used(self, resource_class: str) -> FloatArray:
        """How much of a class is allocated."""

    @abstractmethod
    def room(self, resource_class: str) -> FloatArray:
        """How much of a class may still be allocated; an over-full provider takes nothing away from the others."""

    @abstractmethod
    def fits(self, resource_class: str, amount: int) -> BoolArray:
        """Which hosts may allocate ``amount`` to one more consumer from one provider (capacity and unit rules)."""

    @abstractmethod
    def fitting(self, resource_class: str, amount: int) -> IntArray:
        """From how many providers of each host ``amount`` may be allocated to one more consumer."""

    @abstractmethod
    def has_trait(self, trait: str) -> BoolArray:
        """Which hosts have a provider with this trait."""

    @abstractmethod
    def root_has_trait(self, trait: str) -> BoolArray:
        """Which hosts have this trait on the root of their own tree."""

    @abstractmethod
    def in_aggregate(self, aggregate: str) -> BoolArray:
        """Which hosts have a provider that belongs to this aggregate."""

    @abstractmethod
    def root_in_aggregate(self, aggregate: str) -> BoolArray:
        """Which hosts belong to this aggregate with the root of their own tree."""

    @abstractmethod
    def has_provider(self, uuid: str) -> BoolArray:
        """Which hosts have this provider for their own, or in a tree that shares with them."""

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
    #: Keys of aggregates' metadata that it reads as numbers: whoever sets one to something else is refused.
    numeric_metadata: ClassVar[Sequence[str]] = ()
    #: Why a host is refused, in words that follow the host's name.
    reason: ClassVar[str] = "was refused"
    #: Whether it is about room: an explanation tells the hosts that it removes apart by what they are short of.
    about_room: ClassVar[bool] = False

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def concerns(self, request: RequestSpec) -> bool:  # noqa: ARG002
        """Tell whether it has anything to say about ``request``; where not, all hosts pass without being asked."""
        return True

    def check(self, request: RequestSpec) -> None:  # noqa: B027
        """Refuse what is wrong with ``request``, whatever hosts there are; done once, before anything else.

        Where a filter does so, it may rely on it afterwards.

        :raises InvalidRequest: the request says something to this filter that it cannot mean; with the path of that.
        """

    def why(self, host: Host, request: RequestSpec) -> str:  # noqa: ARG002
        """Return why ``host``, which it refuses, is refused, in words that follow the host's name.

        Asked for a few hosts of an explanation alone: those that are named, and the nearest ones.
        """
        return self.reason

    @abstractmethod
    def passes(self, host: Host, request: RequestSpec) -> bool:
        """Tell whether ``host`` may serve ``request``."""

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        """Tell for each row whether it passes; overridden where all hosts can be answered for at once."""
        return np.fromiter((self.passes(view.host(row), request) for row in range(len(view))), dtype=np.bool_)


class ConditionsFilter(Filter):
    """A filter that is a number of conditions, which are put to one host and to all hosts in the same words."""

    @abstractmethod
    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterable[Answer]:
        """Yield what must all be true: an answer of one host, or of each of all, as ``asked`` gives them.

        They are combined with ``np.logical_not`` and its like, which take either.
        """

    def passes(self, host: Host, request: RequestSpec) -> bool:
        """Tell whether all conditions are true of ``host``."""
        return all(bool(answer) for answer in self.conditions(host, request))

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        """Tell the same of all hosts."""
        passes = np.ones(len(view), dtype=np.bool_)
        for answer in self.conditions(view, request):
            passes &= answer
        return passes


def any_of(answers: Iterable[Answer]) -> Answer:
    """Return whether one of these is true at least; of none it is not."""
    found: Answer = False
    for answer in answers:
        found = np.logical_or(found, answer)
    return found


class Weigher(ABC):
    """Says how good a host is for a request; more is better.

    Weights are brought to 0..1 over the feasible hosts and multiplied by the option ``<name>_weight_multiplier`` of the
    group ``[weighers]``, so a weigher's own scale does not matter; a negative multiplier turns it round. For the hosts
    of an aggregate that has metadata of that name, the multiplier is that; of several, the smallest.
    """

    options: ClassVar[Sequence[cfg.Opt]] = ()
    #: Keys of aggregates' metadata that it reads as numbers; that of its multiplier is one by itself.
    numeric_metadata: ClassVar[Sequence[str]] = ()
    default_multiplier: ClassVar[float] = 1.0

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def concerns(self, request: RequestSpec) -> bool:  # noqa: ARG002
        """Tell whether it has anything to say about ``request``; where not, to it all hosts weigh the same."""
        return True

    @abstractmethod
    def weigh(self, host: Host, request: RequestSpec) -> float:
        """Return the weight of ``host``."""

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        """Return the weight of each row; overridden where all hosts can be answered for at once."""
        return np.fromiter((self.weigh(view.host(row), request) for row in range(len(view))), dtype=np.float64)
