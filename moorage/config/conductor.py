"""The options of the conductors: the super one, and those of cells."""

from oslo_config import cfg

#: Group `conductor`.
CONDUCTOR = [
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
        help="What an operation does when others have written to its consumer, or to the migration's, between its "
        "reading and its writing. Deleting, confirming and reverting never fail back: under `fail` they stay pending "
        "until they are ordered again, under `retry` and `combine` they are repeated until they succeed.",
    ),
    cfg.BoolOpt(
        "delete_foreign_amounts",
        default=True,
        help="Whether what others have put on an instance or on its migration, beyond what was claimed for it, goes "
        "when the instance is deleted, or when a move ends and it is on the host that is left. If not it stays on the "
        "instance's consumer until somebody takes it away, and `moorage audit` shows it. The record of the instance or "
        "of the migration names it either way.",
    ),
    cfg.IntOpt(
        "workers",
        default=32,
        min=1,
        help="Operations that one conductor works on at a time; a quarter of them may call the same cell or agent. "
        "What they do at the same time shares messages and transactions, so more of them cost less each.",
    ),
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
        "deleted_instance_retention",
        default=30 * 86400.0,
        min=0.0,
        help="Seconds for which the record of a deleted instance is kept, with its attempts and migrations; never less "
        "than record_retention. A cell keeps it as long as a host may still have its guest, and the super conductor as "
        "long as the cell does. After that `moorage instance show` does not find it.",
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
