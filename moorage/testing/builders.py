"""Builders of hosts, views, requests and settings with defaults: a test gives only the fields that it is about."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oslo_config import cfg

from moorage.ids import derived
from moorage.model import UNSUFFIXED, AllocationRequest, Flavor, Image, ProviderAmounts, RequestSpec
from moorage.plugin import Aggregate, Cloud, Filter, Host, HostInventory, RequestFilter, Weigher
from moorage.testing.hosts import ListedHosts


def inventory(total: int, used: int = 0, **changes: Any) -> HostInventory:
    """Return a provider's inventory of a resource class: ``total`` and ``used`` in the class's own units.

    :param changes: other fields of :class:`~moorage.plugin.HostInventory`.
    """
    values: dict[str, Any] = {
        "total": total,
        "reserved": 0,
        "min_unit": 1,
        "max_unit": 2**31 - 1,
        "step_size": 1,
        "allocation_ratio": 1.0,
        "used": used,
    }
    return HostInventory(**values | changes)


def host(number: int = 0, **changes: Any) -> Host:
    """Return host ``number``: up, enabled, with 16 ``VCPU``, 32 GiB of ``MEMORY_MB`` and 500 ``DISK_GB``, all free.

    :param changes: other fields of :class:`~moorage.plugin.Host`. ``inventories`` may have a single inventory for a
        class, if only one provider of the host has inventory of it.
    """
    node = derived("moorage.testing", "node", number)
    values: dict[str, Any] = {
        "service_host": f"host{number}",
        "nodename": f"node{number}",
        "compute_node_uuid": node,
        "cell_uuid": derived("moorage.testing", "cell", 0),
        "availability_zone": "nova",
        "up": True,
        "disabled": False,
        "forced_down": False,
        "inventories": {"VCPU": inventory(16), "MEMORY_MB": inventory(32768), "DISK_GB": inventory(500)},
        "attributes": {},
        "providers": frozenset([node]),
    }
    values |= changes
    values["inventories"] = {
        name: (held,) if isinstance(held, HostInventory) else tuple(held)
        for name, held in values["inventories"].items()
    }
    return Host(**values)


def view(*hosts: Host) -> ListedHosts:
    """Return a view of these hosts, in this order."""
    return ListedHosts(hosts)


def request(
    vcpus: int = 1,
    memory_mb: int = 1024,
    root_gb: int = 0,
    *,
    extra_specs: Mapping[str, str] | None = None,
    image_properties: Mapping[str, str] | None = None,
    hints: Mapping[str, str] | None = None,
    **changes: Any,
) -> RequestSpec:
    """Return a request for one flavor: amounts in units, MiB and GiB.

    :param changes: other fields of :class:`~moorage.model.RequestSpec`.
    """
    flavor = Flavor(vcpus=vcpus, memory_mb=memory_mb, root_gb=root_gb, extra_specs=dict(extra_specs or {}))
    values: dict[str, Any] = {
        "project_id": "project",
        "user_id": "user",
        "flavor": flavor,
        "image": Image(properties=dict(image_properties or {})),
        "scheduler_hints": dict(hints or {}),
    }
    return RequestSpec(**values | changes)


def candidate(
    allocations: Mapping[str, Mapping[str, int]], mappings: Mapping[str, Iterable[str]] | None = None
) -> AllocationRequest:
    """Return an allocation candidate: amounts by resource class for each provider's uuid.

    :param mappings: the providers that serve each resource group; by default all serve the unsuffixed one.
    """
    served = {suffix: tuple(uuids) for suffix, uuids in (mappings or {UNSUFFIXED: allocations}).items()}
    amounts = {uuid: ProviderAmounts(resources=dict(each)) for uuid, each in allocations.items()}
    return AllocationRequest(allocations=amounts, mappings=served)


def cloud(aggregates: Iterable[Aggregate] = (), traits: Iterable[str] = ()) -> Cloud:
    """Return the cloud's state for a request filter: host aggregates, and the traits of hosts' roots."""
    return _FixedCloud(aggregates, traits)


def settings_of(kind: type[Filter | Weigher | RequestFilter], **values: Any) -> dict[str, Any]:
    """Return the constructor arguments of a plug-in: its options' defaults, overridden by ``values``.

    :raises AssertionError: an option cannot be registered, a value has no option, or a default or value is not of its
        option's type.
    """
    conf = cfg.ConfigOpts()
    try:
        conf.register_opts(kind.options, group="plugin")
        conf([], project="moorage", default_config_files=[], default_config_dirs=[])
        for name, value in values.items():
            conf.set_override(name, value, group="plugin")
        return {option.dest: conf.plugin[option.dest] for option in kind.options}
    except (cfg.Error, ValueError, TypeError, AttributeError) as fault:
        raise AssertionError(f"the options of {kind.__name__}: {fault}") from fault


class _FixedCloud(Cloud):
    def __init__(self, aggregates: Iterable[Aggregate], traits: Iterable[str]) -> None:
        self._aggregates = sorted(aggregates, key=lambda aggregate: aggregate.uuid)
        self._traits = frozenset(traits)

    def aggregates(self) -> Sequence[Aggregate]:
        return self._aggregates

    def has_trait(self, trait: str) -> bool:
        return trait in self._traits
