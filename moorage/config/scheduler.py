"""The options of the scheduler."""

from oslo_config import cfg

#: Group `scheduler`.
SCHEDULER = [
    cfg.IntOpt(
        "workers",
        default=1,
        min=1,
        help="Processes of `moorage scheduler`. Each is a scheduler with a host view of its own, named after the first "
        "with a number: more of them where the machine has cores for them.",
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
        help="Filters by the name of their entry point, in the order in which they run. "
        "+name and -name alone mean the default with and without these.",
    ),
    cfg.ListOpt(
        "enabled_request_filters",
        default=["extra_specs", "image_traits", "dedicated_cpus", "pci", "disabled_hosts"],
        help="Request filters by the name of their entry point, in the order in which they make a request narrower "
        "before any host is looked at. +name and -name alone mean the default with and without these.",
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
        help="Weighers by the name of their entry point. "
        "+name and -name alone mean the default with and without these.",
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
        "plugin_timeout",
        default=5.0,
        min=0.0,
        help="Seconds that a plug-in which does not come with Moorage may take over one question, that of all hosts at "
        "once; 0 for as long as it likes. Then it counts as broken (SlowPlugin). Its import and its constructor have "
        "as long each: then the scheduler does not start, or keeps its policy at a reload.",
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
    cfg.FloatOpt(
        "feed_retention",
        default=3600.0,
        min=1.0,
        help="Seconds for which the feed of the store's changes is kept. A scheduler that was away for longer finds by "
        "the next comparison of the whole host view what it has missed.",
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
        help="Seconds without a heartbeat after which a host counts as down. One in a sixth of it is recorded. It "
        "must be the same for schedulers and cell conductors: else hosts that are alive may count as down.",
    ),
    cfg.BoolOpt(
        "serve_placement",
        default=True,
        help="Whether `moorage scheduler` serves the placement role as well; false where `moorage placement` runs.",
    ),
]
