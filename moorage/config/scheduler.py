"""The options of the scheduler."""

from oslo_config import cfg

#: Group `scheduler`.
SCHEDULER = [
    cfg.IntOpt(
        "workers",
        default=1,
        min=1,
        help="The number of processes of `moorage scheduler`. Each is a scheduler with its own host view, and is named "
        "after the first with a number. Increase it to use more cores of the machine.",
    ),
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
        help="Filters by the names of their entry points, in the order in which they run. A list of only +name and "
        "-name adds filters to the default and removes them.",
    ),
    cfg.ListOpt(
        "enabled_request_filters",
        default=["extra_specs", "image_traits", "dedicated_cpus", "pci", "disabled_hosts"],
        help="Request filters by the names of their entry points, in the order in which they run, before any host is "
        "examined. A list of only +name and -name adds request filters to the default and removes them.",
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
        help="Weighers by the names of their entry points. A list of only +name and -name adds weighers to the default "
        "and removes them.",
    ),
    cfg.IntOpt(
        "host_subset_size",
        default=1,
        min=1,
        help="The number of best hosts from which one is chosen at random. A value above 1 reduces the chance that "
        "several schedulers choose the same host at the same time.",
    ),
    cfg.StrOpt(
        "broken_plugin",
        default="fail",
        choices=[
            ("fail", "the request fails with the error BrokenPlugin, which names the plug-in"),
            ("skip", "the request is decided without the plug-in, and its explanation names it"),
        ],
        help="What happens to a request if a filter, weigher or request filter raises an exception or returns an "
        "invalid result. Note that under `skip` servers may land on hosts that the broken filter would have removed.",
    ),
    cfg.FloatOpt(
        "plugin_timeout",
        default=5.0,
        min=0.0,
        help="Seconds that an external plug-in may take for one call, which covers all hosts. A slower plug-in counts "
        "as broken (SlowPlugin). The import and the constructor of the plug-in have the same limit each: if they "
        "exceed it, the scheduler does not start, or keeps its policy at a reload. 0 means no limit.",
    ),
    cfg.FloatOpt(
        "view_max_age",
        default=0.1,
        min=0.0,
        help="The maximum age of the host view at a decision, in seconds. An older view first follows the store's "
        "changes. 0 means before every decision.",
    ),
    cfg.FloatOpt(
        "view_compare_interval",
        default=30.0,
        min=0.1,
        help="Seconds between two comparisons of the whole host view with the store.",
    ),
    cfg.FloatOpt(
        "feed_retention",
        default=3600.0,
        min=1.0,
        help="Seconds for which the change feed of the store is kept. A scheduler that has not read it for longer "
        "notices, and compares its whole host view with the store before it decides. It is at least "
        "view_compare_interval: a scheduler without requests reads the changes only at these comparisons.",
    ),
    cfg.IntOpt(
        "max_claim_tries",
        default=20,
        min=1,
        help="The maximum number of times that the store may refuse the claim of a request before the request fails "
        "with ClaimContention. Each try plans the request again.",
    ),
    cfg.FloatOpt(
        "host_down_after",
        default=60.0,
        min=0.1,
        help="Seconds without a heartbeat after which a host counts as down, at least three times [compute] "
        "report_interval and [conductor] report_interval. Heartbeats are recorded at intervals of a sixth of this "
        "value, or of [service] silent_after if that is shorter. Use the same value for schedulers and cell "
        "conductors: otherwise live hosts may count as down.",
    ),
    cfg.BoolOpt(
        "serve_placement",
        default=True,
        help="Whether `moorage scheduler` also serves the placement role. Set it to false where `moorage placement` "
        "runs.",
    ),
]
