"""Every option of every service, and how a service reads its own configuration."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oslo_config import cfg

from moorage import compute_options, errors, placement_api_options

DEFAULT_FILE = Path("/etc/moorage/moorage.conf")

_DATABASE = [
    cfg.StrOpt(
        "connection",
        default="sqlite:///moorage.sqlite",
        secret=True,
        help="The main schema: resource providers, allocations, hosts, cells. An SQLAlchemy URL such as "
        "mysql+pymysql://user:password@127.0.0.1/moorage?charset=utf8mb4, or sqlite:///path for small set-ups.",
    ),
    cfg.IntOpt(
        "pool_size",
        default=16,
        min=1,
        help="Connections that a process keeps to each of its databases; a thread that finds none free waits.",
    ),
    cfg.FloatOpt("pool_timeout", default=10.0, min=0.1, help="Seconds to wait for a free connection."),
    cfg.FloatOpt("lock_wait_timeout", default=2.0, min=1.0, help="Seconds to wait for a row lock."),
    cfg.IntOpt(
        "max_transaction_tries",
        default=20,
        min=1,
        help="How often one transaction is begun when it collides with others (deadlock, lock wait, snapshot). Where a "
        "row lock does not come free, it is given up after five waits.",
    ),
    cfg.FloatOpt(
        "idle_transaction_timeout",
        default=30.0,
        min=0.0,
        help="Seconds after which MariaDB rolls back a transaction in which nothing happens, as of a process that was "
        "stopped or of a machine that was cut off; it is then begun anew. Shorter than [conductor] lease_seconds, so "
        "that whoever takes over finds the rows free. 0 for never. MySQL has no such limit.",
    ),
]

_RPC = [
    cfg.FloatOpt("call_timeout", default=30.0, min=0.1, help="Seconds to wait for the answer to a call."),
    cfg.IntOpt(
        "send_retries",
        default=2,
        min=0,
        help="How often sending a message is repeated while the broker cannot be reached.",
    ),
    cfg.IntOpt("threads", default=8, min=1, help="Threads of each RPC server."),
]

_SERVICE = [
    cfg.FloatOpt(
        "report_interval",
        default=10.0,
        min=0.05,
        help="Seconds between two reports of a service that it is running; see `moorage service list`.",
    ),
    cfg.FloatOpt(
        "silent_after",
        default=60.0,
        min=0.1,
        help="Seconds without a report after which `moorage status` calls a service silent.",
    ),
]

_SCHEDULER = [
    cfg.ListOpt(
        "enabled_filters",
        default=[
            "compute",
            "availability_zone",
            "destination",
            "traits",
            "aggregates",
            "server_group_affinity",
            "server_group_anti_affinity",
            "capabilities",
            "image_properties",
            "aggregate_extra_specs",
            "different_host",
            "same_host",
            "cidr_affinity",
            "resources",
        ],
        help="Filters by the name of their entry point, in the order in which they run.",
    ),
    cfg.ListOpt(
        "enabled_request_filters",
        default=["extra_specs", "image_traits", "dedicated_cpus", "pci", "disabled_hosts"],
        help="Request filters by the name of their entry point, in the order in which they make a request narrower "
        "before any host is looked at.",
    ),
    cfg.ListOpt(
        "enabled_weighers",
        default=[
            "ram",
            "cpu",
            "disk",
            "server_group_soft_affinity",
            "server_group_soft_anti_affinity",
            "pci",
            "build_failure",
            "cross_cell",
        ],
        help="Weighers by the name of their entry point.",
    ),
    cfg.IntOpt(
        "host_subset_size",
        default=1,
        min=1,
        help="The host is picked at random among this many of the best. More than 1 keeps many schedulers from "
        "choosing the same host at the same time.",
    ),
    cfg.StrOpt(
        "broken_plugin",
        default="fail",
        choices=[
            ("fail", "the request is answered with BrokenPlugin, which names the plug-in"),
            ("skip", "the request is decided without that plug-in, and its explanation names it"),
        ],
        help="What becomes of a request in which a filter, weigher or request filter raises, or answers something that "
        "is no answer. To skip a filter that keeps servers off hosts lets them through.",
    ),
    cfg.FloatOpt(
        "view_max_age",
        default=0.1,
        min=0.0,
        help="Seconds after which a decision first lets the host view follow the store's changes; 0 means always.",
    ),
    cfg.FloatOpt(
        "view_compare_interval",
        default=30.0,
        min=0.1,
        help="Seconds between two comparisons of the whole host view with the store.",
    ),
    cfg.IntOpt(
        "max_claim_tries",
        default=20,
        min=1,
        help="How many hosts may refuse the claim of one request before it is answered with ClaimContention.",
    ),
    cfg.FloatOpt(
        "host_down_after",
        default=60.0,
        min=0.1,
        help="Seconds without a heartbeat after which a host counts as down.",
    ),
    cfg.BoolOpt(
        "serve_placement",
        default=True,
        help="Whether `moorage scheduler` serves the placement role as well; false where `moorage placement` runs.",
    ),
]

_PLACEMENT = [
    cfg.FloatOpt(
        "reconcile_interval",
        default=30.0,
        min=0.05,
        help="Seconds between two rounds in which claims that no host has accepted are asked after.",
    ),
    cfg.FloatOpt(
        "reconcile_after",
        default=120.0,
        min=0.0,
        help="Seconds after which a claim that no host has accepted is asked after. It is released only if its owner "
        "says that it does not want it, however old it is.",
    ),
    cfg.FloatOpt(
        "request_retention",
        default=3600.0,
        min=0.0,
        help="Seconds that the answer to a request is kept after whoever asked has acknowledged it. It is never kept "
        "for less than a repeat of the request can take to arrive.",
    ),
    cfg.FloatOpt(
        "unacknowledged_retention",
        default=7 * 86400.0,
        min=0.0,
        help="Seconds that the answer to a request is kept which nobody acknowledges; at least as long as an "
        "acknowledged one. Longer than a conductor may be away before it is started again.",
    ),
    cfg.FloatOpt(
        "tombstone_retention",
        default=30 * 86400.0,
        min=0.0,
        help="Seconds that it is remembered that a consumer was deleted for good; at least as long as any answer.",
    ),
]

_CONDUCTOR = [
    cfg.StrOpt(
        "connection",
        secret=True,
        help="The super conductor's own records; the default is [database] connection.",
    ),
    cfg.IntOpt(
        "max_attempts",
        default=3,
        min=1,
        max=100,
        help="On how many hosts a build is tried in all; the scheduler is asked for one alternate less.",
    ),
    cfg.IntOpt(
        "max_contention_retries",
        default=5,
        min=0,
        help="How often the scheduler is asked again, with a new request, after ClaimContention; and under "
        "consumer_conflict_policy `retry`, after ConsumerGenerationConflict.",
    ),
    cfg.IntOpt(
        "max_unanswered_retries",
        default=3,
        min=0,
        help="How often a call that nobody has answered is repeated, with the same request id.",
    ),
    cfg.StrOpt(
        "consumer_conflict_policy",
        default="combine",
        choices=[
            ("fail", "the operation fails, and is ordered again by whoever wants it"),
            ("retry", "read what the consumer holds and write again, max_contention_retries times"),
            ("combine", "keep what others have written, add or take away what is one's own, as often as it takes"),
        ],
        help="What an operation does when others have written to its consumer between its reading and its writing. "
        "Deleting, confirming and reverting never fail back: under `fail` they stay pending until they are ordered "
        "again.",
    ),
    cfg.BoolOpt(
        "delete_foreign_amounts",
        default=True,
        help="Whether what others have put on an instance, beyond what was claimed for it, goes when the instance is "
        "deleted. If not it stays on the instance's consumer until somebody takes it away, and `moorage audit` shows "
        "it. The instance's record names it either way.",
    ),
    cfg.IntOpt("workers", default=8, min=1, help="Operations that one conductor works on at a time."),
    cfg.FloatOpt(
        "lease_seconds",
        default=60.0,
        min=1.0,
        help="Seconds without a sign of life after which another conductor goes on with the operations of one.",
    ),
    cfg.FloatOpt(
        "retry_backoff",
        default=1.0,
        min=0.001,
        help="Seconds before a step is tried again; each further time three times as long, up to thirty times.",
    ),
    cfg.FloatOpt(
        "housekeeping_interval",
        default=10.0,
        min=0.05,
        help="Seconds between two rounds in which answers that are on record are acknowledged, and in which the super "
        "conductor asks the cells which instances they have deleted.",
    ),
    cfg.FloatOpt(
        "build_timeout",
        default=600.0,
        min=0.1,
        help="Seconds after which a host that has been ordered to build and has not reported is given up for the next "
        "one. What was claimed there stays held until nothing of the guest is left.",
    ),
    cfg.FloatOpt(
        "delete_patience",
        default=60.0,
        min=0.0,
        help="Seconds after which an instance counts as deleted though its host does not answer. What it holds there "
        "stays held until nothing of the guest is left.",
    ),
    cfg.FloatOpt(
        "record_retention",
        default=30 * 86400.0,
        min=0.0,
        help="Seconds for which the record of an operation that has ended is kept, and, after an instance was deleted, "
        "that of its attempts; never less than [placement] tombstone_retention. An attempt whose host may still have "
        "its guest is kept until that host says that it has not.",
    ),
    cfg.FloatOpt(
        "report_interval",
        default=5.0,
        min=0.05,
        help="Seconds between two reports of a cell's hosts to the schedulers.",
    ),
    cfg.FloatOpt(
        "failed_build_half_life",
        default=600.0,
        min=1.0,
        help="Seconds after which a build that has failed on a host counts half as much; a guest that starts there has "
        "the same effect. What is less than half a failure counts no more.",
    ),
    cfg.ListOpt(
        "reported_image_properties",
        default=[],
        help="Properties of images of which a cell tells the schedulers how many servers of a host have which value, "
        "for the weigher `image_properties`. Without any, no server's image is looked at.",
    ),
]

GROUPS: Mapping[str, Sequence[cfg.Opt]] = {
    "database": _DATABASE,
    "rpc": _RPC,
    "service": _SERVICE,
    "scheduler": _SCHEDULER,
    "placement": _PLACEMENT,
    "conductor": _CONDUCTOR,
    "compute": compute_options.COMPUTE,
    "fake_driver": compute_options.FAKE_DRIVER,
    "placement_api": placement_api_options.PLACEMENT_API,
}


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return all options by group, as oslo-config-generator asks for them."""
    return [(group, list(options)) for group, options in GROUPS.items()]


def new(settings: Mapping[str, Mapping[str, Any]] | None = None, files: Sequence[Path] = ()) -> cfg.ConfigOpts:
    """Return a configuration of its own, read from ``files``, with ``settings`` (group, name, value) on top.

    :raises ConfigurationError: a file cannot be read, or a value is not of its option's type.
    """
    from moorage import bus, logs  # here, because the bus must choose its threading backend at its first import

    conf = cfg.ConfigOpts()
    logs.register_options(conf)
    bus.register_options(conf)
    for group, options in GROUPS.items():
        conf.register_opts(options, group=group)
    try:
        conf([], project="moorage", default_config_files=[str(file) for file in files], default_config_dirs=[])
        for group, values in (settings or {}).items():
            for name, value in values.items():
                conf.set_override(name, value, group=None if group == "DEFAULT" else group)
        check(conf)
    except (cfg.Error, ValueError) as fault:
        raise errors.ConfigurationError(reason=str(fault)) from fault
    return conf


def check(conf: cfg.ConfigOpts) -> None:
    """Read every option of ours once, so that a bad value is found before a service starts.

    :raises ValueError: a value is not of its option's type.
    """
    for group, options in GROUPS.items():
        for option in options:
            conf[group][option.name]


def find_file(named: str | None) -> list[Path]:
    """Return the configuration file to read: the one named, else ``MOORAGE_CONFIG``, else the one in /etc, if any.

    :raises ConfigurationError: the file that was named is not there.
    """
    chosen = named or os.environ.get("MOORAGE_CONFIG")
    if chosen:
        if not Path(chosen).is_file():
            raise errors.ConfigurationError(reason=f"there is no configuration file {chosen}")
        return [Path(chosen)]
    return [DEFAULT_FILE] if DEFAULT_FILE.is_file() else []
