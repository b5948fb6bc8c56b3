"""The options of compute agents, and of the fake driver."""

import socket

from oslo_config import cfg, types

_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\\Z"


def _hosts(name: str, of_which: str) -> cfg.ListOpt:
    return cfg.ListOpt(name, default=[], help=f"Names of hosts {of_which}")


def _amount(name: str, default: int, least: int, what: str) -> cfg.IntOpt:
    """Declare an amount of a resource class: the greatest is that of an inventory."""
    return cfg.IntOpt(name, default=default, min=least, max=2**31 - 1, help=what)


def _parts(name: str, what: str) -> cfg.IntOpt:
    """Declare a number of child providers of a host: a report has at most 1000 providers."""
    return cfg.IntOpt(name, default=0, min=0, max=999, help=what)


#: Group `compute`.
COMPUTE = [
    cfg.StrOpt(
        "agent",
        default=socket.gethostname(),
        sample_default="<host name>",
        help="The name of this agent. It must be unique within the cell, and stay the same when the agent is "
        "restarted.",
    ),
    cfg.StrOpt(
        "cell_uuid",
        regex=_UUID,
        help="The uuid of the agent's cell. Set it where `transport_url` is the cell's own bus: the agent then needs "
        "no access to the main bus. It refuses to start if this cell has another name than its own. If it is not set, "
        "the agent asks the placement role on the main bus for the address of its cell's bus.",
    ),
    cfg.StrOpt("driver", default="fake", help="The compute driver, by the name of its entry point."),
    cfg.FloatOpt(
        "report_interval",
        default=5.0,
        min=0.05,
        help="Seconds between two reports of the agent's hosts to its cell, at most a third of [scheduler] "
        "host_down_after. To raise it further, raise host_down_after for all services, and set both in the file of "
        "each agent: an agent compares them.",
    ),
    cfg.IntOpt("workers", default=8, min=1, help="The number of builds that the agent works on at the same time."),
    cfg.FloatOpt(
        "stop_timeout",
        default=3.0,
        min=0.0,
        help="Seconds that a stopping agent waits for builds in progress, and the same again for other orders. In any "
        "case the process ends 10 seconds after the signal.",
    ),
    cfg.BoolOpt(
        "reshape_at_any_report",
        default=False,
        help="Whether the driver may request a reshape of a host's resource providers and their allocations in any "
        "report. By default it may do so only until the host has been described for the first time after the agent's "
        "start.",
    ),
]

#: Group `fake_driver`.
FAKE_DRIVER = [
    cfg.IntOpt("hosts", default=1, min=1, max=1_000_000, help="The number of hosts that the fake driver simulates."),
    cfg.StrOpt("host_prefix", help="The prefix of the names of the simulated hosts. The default is the agent's name."),
    cfg.StrOpt(
        "availability_zone",
        default="nova",
        regex="^.{0,254}\\S\\Z",
        help="The availability zone of the simulated hosts.",
    ),
    _amount("vcpus", 16, 1, "Inventory of VCPU of each host."),
    _amount("pcpus", 0, 0, "Inventory of PCPU of each host, in addition to its VCPU."),
    cfg.FloatOpt("vcpu_allocation_ratio", default=1.0, min=0.001, help="The allocation ratio of VCPU of each host."),
    _amount("memory_mb", 32768, 1, "Inventory of MEMORY_MB of each host."),
    _amount("disk_gb", 500, 0, "Inventory of DISK_GB of each host. 0 means none."),
    cfg.StrOpt(
        "shared_disk_aggregate",
        regex=f"^\\Z|{_UUID}",
        help="The uuid of an aggregate in which a storage pool shares its DISK_GB. If it is set, the hosts belong to "
        "this aggregate and have no DISK_GB of their own.",
    ),
    cfg.ListOpt(
        "traits", default=[], item_type=types.String(regex="^[A-Z0-9_]{1,255}\\Z"), help="Traits of each host."
    ),
    cfg.MultiStrOpt(
        "attributes",
        default=[],
        help="Attributes that the hosts report, for filters and weighers to read, as a JSON object such as "
        '{"hypervisor_version": 6002000, "cpu_info": {"features": ["avx2"]}}. To set attributes of one host only, put '
        'its name and a colon before the object: host-0002: {"gpu": "a100"}. May be repeated; the last value of an '
        "attribute counts.",
    ),
    cfg.ListOpt(
        "metrics",
        default=[],
        help="Metrics that each host reports, in the attribute `metrics`. cpu.percent=20 gives all hosts the same "
        "value. cpu.percent=0..100 gives each host a different value in this range, the same at every start.",
    ),
    cfg.StrOpt(
        "layout",
        default="nested",
        choices=[
            ("nested", "NUMA nodes, GPUs and NICs are child resource providers of the host"),
            ("flat", "all inventories are on the host's own resource provider"),
        ],
        help="How the hosts describe their resources. An agent that is restarted with another layout requests a "
        "reshape of the resource providers of its hosts.",
    ),
    _parts(
        "numa_nodes",
        "The number of NUMA nodes of each host. They share its VCPU, PCPU and MEMORY_MB equally. 0 means none.",
    ),
    _parts("gpus", "The number of physical GPUs of each host."),
    _amount("vgpus_per_gpu", 4, 1, "Inventory of VGPU of each physical GPU."),
    _parts("nics", "The number of SR-IOV NICs of each host."),
    _amount("vfs_per_nic", 8, 1, "Inventory of SRIOV_NET_VF of each NIC."),
    _amount(
        "nic_bandwidth",
        10_000_000,
        0,
        "Inventory of NET_BW_EGR_KILOBIT_PER_SEC and of NET_BW_IGR_KILOBIT_PER_SEC of each NIC. 0 means none.",
    ),
    cfg.ListOpt(
        "physnets",
        default=["physnet0"],
        help="The physical networks of the NICs, assigned in turn: the NICs of a host have the traits of these "
        "networks in this order.",
    ),
    cfg.StrOpt(
        "state_file",
        help="The file in which the driver stores its guests, so that they survive a restart of the agent. The default "
        "is a file in the working directory that is named after the agent.",
    ),
    cfg.IntOpt(
        "seed",
        default=0,
        help="The seed of the simulated failures. Which attempts fail depends only on the seed, the instance and the "
        "host.",
    ),
    cfg.FloatOpt("fail_rate", default=0.0, min=0.0, max=1.0, help="The fraction of spawns that fail, from 0 to 1."),
    cfg.ListOpt(
        "broken_images",
        default=[],
        help="Ids of images from which no guest starts on any host: the build ends in error after the first attempt.",
    ),
    _hosts("failing_hosts", "on which every spawn fails."),
    _hosts("refusing_hosts", "that refuse every build before they accept its claim."),
    cfg.FloatOpt("spawn_seconds", default=0.0, min=0.0, help="Seconds that a spawn takes."),
    _hosts("hanging_hosts", "on which a spawn does not end until it is destroyed."),
    _hosts(
        "late_hosts", "on which a spawn takes late_seconds and cannot be interrupted, even if it is no longer wanted."
    ),
    cfg.FloatOpt("late_seconds", default=30.0, min=0.0, help="Seconds that a spawn takes on late_hosts."),
    _hosts(
        "dying_hosts",
        "that die in the middle of every spawn and return after dead_seconds with the guests that they had.",
    ),
    cfg.FloatOpt("dead_seconds", default=30.0, min=0.0, help="Seconds that dying_hosts are dead."),
    _hosts(
        "refusing_moves_hosts",
        "that refuse every guest that comes from another host or is resized on the same host, before they accept its "
        "claim. There the pre-check of a live migration fails.",
    ),
    _hosts(
        "failing_moves_hosts",
        "on which the spawn fails for every guest that comes from another host or is resized on the same host.",
    ),
    cfg.FloatOpt(
        "live_migration_seconds",
        default=0.0,
        min=0.0,
        help="Seconds that the spawn of a live-migrated guest takes, in place of spawn_seconds.",
    ),
    _hosts("stuck_hosts", "that can neither stop, start nor rebuild an existing guest."),
    cfg.IntOpt(
        "stranger_guests",
        default=0,
        min=0,
        help="The number of guests that the hosts have from the start and that are not in the records of the cell. "
        "Each uses one VCPU.",
    ),
]
