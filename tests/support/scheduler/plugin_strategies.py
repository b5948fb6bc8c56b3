"""Clouds and requests for filters and weighers: all values that a plug-in may read occur, and often enough.

The pools of values are small, so that hosts often match a request, and often just fail to.
"""

import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from oslo_config import cfg

from moorage.ids import derived
from moorage.model import Destination, Flavor, Image, ServerGroup
from placement_store.server_groups.rows import OccupiedRoot
from scheduler.view.snapshot import Snapshot
from support.moorage.configuration import from_text
from support.scheduler.builders import CELLS, host_cache, host_row, spec
from support.scheduler.trees import providers_of_hosts

GROUP = derived("tests", "group", 1)
INSTANCES = [derived("tests", "instance", number) for number in range(3)]
NAMES = ["host0", "HOST1", "Host2", "elsewhere", "node0", "NODE1"]
names = st.sampled_from(NAMES)
several_names = st.lists(names, max_size=3).map(tuple)

#: Settings with which every plug-in that has options takes part.
_SETTINGS = """
[filters]
isolated_hosts = HOST0,elsewhere
isolated_images = isolated
image_properties_default_architecture = x86_64
required_metrics = cpu.percent
max_io_ops_per_host = 2
max_instances_per_host = 2
[weighers]
metrics_weight_setting = cpu.percent=-1.0,pressure=0.5
image_props_weight_setting = os_distro=2.0
pci_resource_classes = VG*,PCI_DEVICE
"""


@functools.cache
def configured() -> cfg.ConfigOpts:
    """A configuration in which every plug-in with options has some set."""
    with tempfile.TemporaryDirectory() as folder:
        return from_text(Path(folder), _SETTINGS)


# --- Hosts ----------------------------------------------------------------------------------------------------------

_attributes = st.fixed_dictionaries(
    {},
    optional={
        "host_ip": st.sampled_from(["10.0.0.5", "10.0.1.9", "2001:db8::7", "nowhere", 7, None]),
        "hypervisor_version": st.sampled_from([6001002, 7000000, "6.1.2", "10.0", "new", 0, -1, True, None]),
        "supported_instances": st.sampled_from(
            [
                *[[["x86_64", "kvm", "hvm"], ["i686", "qemu", "hvm"]]] * 4,
                [["aarch64", "kvm", "hvm"]],
                [["x86_64"]],
                "kvm",
            ]
        ),
        "rack": st.sampled_from(["a1", "a2", ["a1", "a2"], 1, 1.5, True, {"a1": 1}, None]),
        "ssd": st.sampled_from([True, False, "true", 5, "5", None]),
        "cpu_info": st.sampled_from([{"features": ["avx", "sse"], "maxphysaddr": {"bits": 46}}, {}, "avx sse"]),
        "metrics": st.dictionaries(
            st.sampled_from(["cpu.percent", "pressure"]), st.sampled_from([0.5, 12, "3", "high", True, None])
        ),
    },
)


def _values(*values: str) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(values), min_size=1)


_metadata = st.fixed_dictionaries(
    {},
    optional={
        "filter_tenant_id": _values("project", "other, project", "other"),
        "filter_tenant_id7": _values("project", "other"),
        "instance_type": _values("m1.small", "m1.large", "m1.large,m1.small"),
        "os_distro": _values("debian", "debian,fedora", "arch"),
        "ssd": _values("true", "5", "7"),
        "rack": _values("a1", "a2"),
    },
)
_limits = st.dictionaries(
    st.sampled_from(["max_io_ops_per_host", "max_instances_per_host"]),
    st.frozensets(st.sampled_from(["0", "1", "3", "2.5"]), min_size=1),
)
_described = st.fixed_dictionaries(
    {
        "cell_uuid": st.sampled_from(CELLS),
        "availability_zone": st.sampled_from(["nova", "a", "A"]),
        "up": st.booleans(),
        "disabled": st.booleans(),
        "forced_down": st.booleans(),
        "attributes": _attributes,
        "metadata": st.builds(lambda one, other: {**one, **other}, _metadata, _limits),
        "io_ops": st.integers(0, 3),
        "failed_builds": st.sampled_from([0.0, 0.25, 0.5, 1.0, 7.5]),
        "image_properties": st.dictionaries(
            st.sampled_from(["os_distro=debian", "os_distro=fedora", "hw_machine_type=q35"]), st.integers(1, 3)
        ),
    }
)
_occupied = st.builds(OccupiedRoot, members=st.integers(1, 3), forced_down=st.booleans())
#: The compute nodes of existing hosts, and of one host that does not exist.
_compute_nodes = st.integers(0, 4).map(lambda number: host_row(number).compute_node_uuid)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Up to four hosts, for a request that may name a server group, or servers that may be on these hosts."""
    described = draw(st.lists(_described, min_size=2, max_size=4) | st.lists(_described, max_size=1))
    hosts = [host_row(number, **values) for number, values in enumerate(described)]
    shown = host_cache(hosts, draw(providers_of_hosts(len(hosts))))
    shown.update(instances={host.id * 100: draw(st.integers(0, 3)) for host in hosts})
    view = shown.snapshot()
    roots = draw(st.dictionaries(_compute_nodes, _occupied, max_size=3) | st.none())
    neighbours = draw(st.dictionaries(_compute_nodes, st.sets(st.sampled_from(INSTANCES), min_size=1), max_size=3))
    return (view if roots is None else view.with_members(roots)).with_neighbours(neighbours)


# --- Requests -------------------------------------------------------------------------------------------------------

_requirements = st.sampled_from(
    [
        *("true", "True", "5", "= 5", "== 5", "!= 5", ">= 5", "<= 5", "s== a1", "s!= a1", "s< a2", "s<= a1", "s> a1"),
        *("s>= a2", "<in> a", "<in> avx", "<all-in> avx sse", "<or> a1 <or> a2", "<is> 5", ">= many", "<or>", ""),
    ]
)
_extra_specs = st.dictionaries(
    st.sampled_from(
        [
            *("rack", "ssd", "capabilities:rack", "capabilities:ssd", "capabilities:cpu_info:features"),
            *("aggregate_instance_extra_specs:ssd", "aggregate_instance_extra_specs:rack", "hw:maxphysaddr_bits"),
        ]
    ),
    _requirements,
    max_size=3,
)
_properties = st.sampled_from(
    [
        *[("hw_architecture", name) for name in ("x86_64", "amd64", "aarch64")],
        *[("img_hv_type", "kvm"), ("img_hv_type", "QEMU"), ("vm_mode", "hvm"), ("vm_mode", "xen")],
        *[("img_hv_requested_version", versions) for versions in (">=6.0", ">=6.0, <6.2", "==10.0", "recent")],
        *[("hw_maxphysaddr_bits", bits) for bits in ("40", "52", "many")],
        *[("os_distro", name) for name in ("debian", "fedora", "arch")] * 3,
        ("hw_machine_type", "q35"),
    ]
)
_images = st.builds(
    Image, id=st.sampled_from([None, "isolated", "plain"]), properties=st.lists(_properties, max_size=2).map(dict)
)
_comparisons = st.tuples(
    st.sampled_from(["=", "<", "<=", ">", ">=", "in"]),
    st.sampled_from(["$rack", "$ssd", "$cpu_info.maxphysaddr.bits", "$free_ram_mb", "$num_instances", "$nothing"]),
    st.sampled_from(["a1", 1, 1.5, True, 46, 5]),
).map(list)
_queries: st.SearchStrategy[Any] = st.recursive(
    _comparisons,
    lambda parts: (
        st.tuples(st.just("not"), parts).map(list)
        | st.lists(parts, min_size=1, max_size=3).map(lambda some: ["and", *some])
        | st.lists(parts, min_size=1, max_size=3).map(lambda some: ["or", *some])
    ),
    max_leaves=4,
)
_uuids = st.lists(st.sampled_from(INSTANCES), max_size=2)
_hints = st.fixed_dictionaries(
    {},
    optional={
        "same_host": _uuids.map(",".join) | _uuids.map(json.dumps) | st.just("no uuid"),
        "different_host": _uuids.map(", ".join) | _uuids.map(json.dumps) | st.just("[1]"),
        "build_near_host_ip": st.sampled_from(["10.0.0.77", "2001:db8::1", "near", ""]),
        "cidr": st.sampled_from(["/24", "16", "/0", "/64", "/129", "wide"]),
        "query": _queries.map(json.dumps) | st.just("["),
    },
)
_server_groups = st.builds(
    ServerGroup,
    uuid=st.just(GROUP),
    policy=st.sampled_from(["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]),
    max_server_per_host=st.integers(1, 3),
)
_destinations = st.builds(
    Destination,
    host=st.none() | names,
    node=st.none() | names,
    node_uuid=st.none() | _compute_nodes,
    cell=st.none() | st.sampled_from([*CELLS, "00000000-0000-0000-0000-000000000000"]),
    allow_cross_cell_move=st.booleans(),
)


def _request(flavor: Mapping[str, Any], **changes: Any) -> Any:
    return spec(flavor=Flavor(**flavor), **changes)


#: Requests with values for any plug-in; now and then with an invalid value.
requests = st.builds(
    _request,
    flavor=st.fixed_dictionaries(
        {
            "name": st.sampled_from(["m1.small", "m1.large"]),
            "vcpus": st.integers(1, 4),
            "memory_mb": st.integers(1, 4),
            "root_gb": st.integers(0, 4),
            "extra_specs": _extra_specs,
        }
    ),
    image=_images,
    project_id=st.sampled_from(["project", "stranger"]),
    availability_zone=st.sampled_from([None, "nova", "a", "nowhere"]),
    ignore_hosts=several_names,
    force_hosts=several_names,
    force_nodes=several_names,
    requested_destination=st.none() | _destinations,
    server_group=_server_groups | _server_groups | st.none(),
    scheduler_hints=_hints,
)
