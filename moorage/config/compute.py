"""The options of compute agents, and of the fake driver."""

import socket

from oslo_config import cfg

#: Group `compute`.
COMPUTE = [
    cfg.StrOpt("agent", default=socket.gethostname(), sample_default="<host name>", help="The name of this agent."),
    cfg.StrOpt(
        "cell_uuid",
        regex="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\\Z",
        help="The uuid of the cell, where `transport_url` is the cell's own bus: the agent then needs no access to the "
        "main bus. By default it asks the placement role on the main bus where its cell's bus is.",
    ),
    cfg.StrOpt("driver", default="fake", help="The driver, by the name of its entry point."),
    cfg.FloatOpt("report_interval", default=5.0, min=0.05, help="Seconds between two reports of this agent's hosts."),
    cfg.IntOpt("workers", default=8, min=1, help="Builds that this agent works on at a time."),
    cfg.FloatOpt(
        "stop_timeout",
        default=3.0,
        min=0.0,
        help="Seconds that an agent which is told to stop gives to the builds under way, and as many to other orders. "
        "Its process ends 10 seconds after the signal in any case.",
    ),
    cfg.BoolOpt(
        "reshape_at_any_report",
        default=False,
        help="Whether a driver may have the resource providers of a host reshaped, with all that is allocated of them, "
        "at any report; by default only until the host has been described after the agent's start.",
    ),
]

#: Group `fake_driver`.
FAKE_DRIVER = [
    cfg.IntOpt("hosts", default=1, min=1, help="How many hosts the fake driver plays."),
    cfg.StrOpt("host_prefix", help="How their names begin; the default is the agent's name."),
    cfg.StrOpt("availability_zone", default="nova", help="The availability zone of its hosts."),
    cfg.IntOpt("vcpus", default=16, min=1, help="VCPU of each host."),
    cfg.IntOpt("pcpus", default=0, min=0, help="PCPU of each host, beside its VCPU."),
    cfg.FloatOpt("vcpu_allocation_ratio", default=1.0, min=0.001, help="Allocation ratio of VCPU."),
    cfg.IntOpt("memory_mb", default=32768, min=1, help="MEMORY_MB of each host."),
    cfg.IntOpt("disk_gb", default=500, min=0, help="DISK_GB of each host; 0 for none."),
    cfg.StrOpt(
        "shared_disk_aggregate",
        help="The uuid of an aggregate. Its hosts have no DISK_GB of their own then, and belong to this aggregate, in "
        "which a storage pool shares its own.",
    ),
    cfg.ListOpt("traits", default=[], help="Traits of each host."),
    cfg.MultiStrOpt(
        "attributes",
        default=[],
        help="What each host says of itself, for filters and weighers to read, as a JSON object such as "
        '{"hypervisor_version": 6002000, "cpu_info": {"features": ["avx2"]}}; behind the name of a host and a colon '
        'what that host alone says, as in host-0002: {"gpu": "a100"}. May be given more than once; what comes later '
        "counts.",
    ),
    cfg.ListOpt(
        "metrics",
        default=[],
        help="Metrics that each host reports, in the attribute `metrics`: cpu.percent=20 the same of all hosts, "
        "cpu.percent=0..100 of each host another number between those, the same at every start.",
    ),
    cfg.StrOpt(
        "layout",
        default="nested",
        choices=[
            ("nested", "NUMA nodes, GPUs and NICs are resource providers under their host's"),
            ("flat", "the host's own resource provider has all that they have"),
        ],
        help="How its hosts describe what they have. An agent that is started with another layout than before has the "
        "providers of its hosts reshaped.",
    ),
    cfg.IntOpt(
        "numa_nodes",
        default=0,
        min=0,
        help="NUMA nodes of each host, which have its VCPU, PCPU and MEMORY_MB in equal shares; 0 for none.",
    ),
    cfg.IntOpt("gpus", default=0, min=0, help="Physical GPUs of each host."),
    cfg.IntOpt("vgpus_per_gpu", default=4, min=1, help="VGPU of each physical GPU."),
    cfg.IntOpt("nics", default=0, min=0, help="SR-IOV NICs of each host."),
    cfg.IntOpt("vfs_per_nic", default=8, min=1, help="SRIOV_NET_VF of each NIC."),
    cfg.IntOpt(
        "nic_bandwidth",
        default=10_000_000,
        min=0,
        help="NET_BW_EGR_KILOBIT_PER_SEC and NET_BW_IGR_KILOBIT_PER_SEC of each NIC; 0 for none.",
    ),
    cfg.ListOpt(
        "physnets",
        default=["physnet0"],
        help="The physical networks that the NICs of a host are on, in turn: NIC n has the trait of network n.",
    ),
    cfg.StrOpt(
        "state_file",
        help="The file that holds its guests and outlives the agent; by default one beside the working directory's "
        "other files, named after the agent.",
    ),
    cfg.IntOpt("seed", default=0, help="Which attempts fail is a function of this, the instance and the host."),
    cfg.FloatOpt("fail_rate", default=0.0, min=0.0, max=1.0, help="The share of spawns that fail."),
    cfg.ListOpt(
        "broken_images",
        default=[],
        help="Images, by id, from which no guest starts on any host: the build ends in error after the first attempt.",
    ),
    cfg.ListOpt("failing_hosts", default=[], help="Hosts on which every spawn fails."),
    cfg.ListOpt("refusing_hosts", default=[], help="Hosts that refuse every build before they accept its claim."),
    cfg.FloatOpt("spawn_seconds", default=0.0, min=0.0, help="How long a spawn takes."),
    cfg.ListOpt("hanging_hosts", default=[], help="Hosts on which a spawn never ends, until it is destroyed."),
    cfg.ListOpt(
        "late_hosts",
        default=[],
        help="Hosts on which a spawn takes late_seconds and cannot be cut short, however little it is still wanted.",
    ),
    cfg.FloatOpt("late_seconds", default=30.0, min=0.0, help="How long a spawn takes on late_hosts."),
    cfg.ListOpt(
        "dying_hosts",
        default=[],
        help="Hosts that die in the middle of every spawn, and return after dead_seconds with the guests they had.",
    ),
    cfg.FloatOpt("dead_seconds", default=30.0, min=0.0, help="How long dying_hosts are dead."),
    cfg.ListOpt(
        "refusing_moves_hosts",
        default=[],
        help="Hosts that refuse every guest which comes from another host, or takes another size on the same one, "
        "before they accept its claim: the pre-check of a live migration fails there.",
    ),
    cfg.ListOpt(
        "failing_moves_hosts",
        default=[],
        help="Hosts on which the spawn of every guest fails that comes from another host, or takes another size on the "
        "same one.",
    ),
    cfg.FloatOpt(
        "live_migration_seconds",
        default=0.0,
        min=0.0,
        help="How long the spawn of a guest takes that is migrated live, in place of spawn_seconds.",
    ),
    cfg.ListOpt(
        "stuck_hosts",
        default=[],
        help="Hosts that can neither stop nor start a guest that is there, nor rebuild it.",
    ),
    cfg.IntOpt(
        "stranger_guests",
        default=0,
        min=0,
        help="How many guests its hosts have from the start that their cell knows nothing of; each holds one VCPU.",
    ),
]
