"""The options of the super conductor and the cell conductors."""

from oslo_config import cfg

#: The longest wait between two tries of a step, as a multiple of `retry_backoff`.
LONGEST_BACKOFF = 30
#: The number of tries of a request to the schedulers while their store or the bus is away: four minutes with the
#: default back-off. Arbitrary: longer than the fail-over of a database or a broker, and longer than a run of tries that
#: all reach the same one of two schedulers, whose database is unavailable.
TRIES_WHILE_AWAY = 10

#: Group `conductor`.
CONDUCTOR = [
    cfg.StrOpt(
        "connection",
        secret=True,
        help="The database URL of the super conductor's records. The default is [database] connection.",
    ),
    cfg.IntOpt(
        "max_attempts",
        default=3,
        min=1,
        max=100,
        help="The maximum number of hosts on which a build is tried: the claimed host and its alternates.",
    ),
    cfg.IntOpt(
        "max_contention_retries",
        default=5,
        min=0,
        help="The number of times the scheduler is asked again, with a new request, after ClaimContention, and after "
        "ConsumerGenerationConflict if consumer_conflict_policy is `retry`.",
    ),
    cfg.IntOpt(
        "max_unanswered_retries",
        default=3,
        min=0,
        help="The number of times an unanswered call is repeated with the same request id. Use the same value for the "
        "placement role, which keeps answers for as long as a call may be repeated.",
    ),
    cfg.StrOpt(
        "consumer_conflict_policy",
        default="combine",
        choices=[
            ("fail", "the operation fails; the user may order it again"),
            ("retry", "read the consumer's allocations and write again, at most max_contention_retries times"),
            ("combine", "keep the other changes and apply the operation's own, as many times as necessary"),
        ],
        help="What an operation does when another client has changed the allocations of its consumer, or of the "
        "migration, between its read and its write. Delete, confirm and revert never fail because of this: under "
        "`fail` they stay pending until they are ordered again, under `retry` and `combine` they are repeated until "
        "they succeed.",
    ),
    cfg.BoolOpt(
        "delete_foreign_amounts",
        default=True,
        help="Whether allocations that others have added to an instance or to its migration are deleted with it: when "
        "the instance is deleted, and when a move ends, those on the host that the instance leaves. If false, they "
        "stay on the instance's consumer until somebody removes them, and `moorage audit` reports them. In both cases "
        "the record of the instance or of the migration lists them.",
    ),
    cfg.IntOpt(
        "workers",
        default=32,
        min=1,
        help="The number of operations that a conductor works on at the same time. A quarter of them may call the same "
        "cell or agent, the schedulers, or the placement role. Operations that are at the same step share messages and "
        "transactions, so that more workers cost less each.",
    ),
    cfg.FloatOpt(
        "lease_seconds",
        default=60.0,
        min=1.0,
        help="Seconds for which a conductor leases an operation. If the conductor does not renew the lease in this "
        "time, another one continues the operation. Use the same value for the placement role, which keeps answers "
        "for as long as another conductor may repeat a call.",
    ),
    cfg.FloatOpt(
        "retry_backoff",
        default=1.0,
        min=0.001,
        help="Seconds before a failed step is tried again. Each further retry waits three times as long as the one "
        "before, up to thirty times this value. Use the same value for the placement role, as for lease_seconds.",
    ),
    cfg.FloatOpt(
        "housekeeping_interval",
        default=10.0,
        min=0.05,
        help="Seconds between two housekeeping rounds. In each round a conductor acknowledges recorded answers, and "
        "the super conductor asks the cells which instances they have deleted.",
    ),
    cfg.FloatOpt(
        "build_timeout",
        default=600.0,
        min=0.1,
        help="Seconds after which a build that its host has not reported on counts as failed, and the next host is "
        "tried. What was claimed on the first host stays allocated until its guest is known to be gone. A rebuild that "
        "its host has begun and not finished after this time has failed as well, and so has the start of a guest that "
        "is back on its source; until the host has answered, both are repeated as long as it reports itself.",
    ),
    cfg.FloatOpt(
        "delete_patience",
        default=60.0,
        min=0.0,
        help="Seconds after which an instance counts as deleted even if its host does not answer; a host that is "
        "forced down is not waited for. What the instance holds there stays allocated until its guest is known to be "
        "gone.",
    ),
    cfg.FloatOpt(
        "record_retention",
        default=30 * 86400.0,
        min=0.0,
        help="Seconds for which the record of an ended operation is kept, and the attempts of an instance after its "
        "deletion. The newest hundred attempts and migrations of an instance that exists are kept however old they "
        "are, older ones for about as long. It is never less than [placement] tombstone_retention. An attempt whose "
        "guest may still be on its host is kept until the host reports that the guest is gone.",
    ),
    cfg.FloatOpt(
        "deleted_instance_retention",
        default=30 * 86400.0,
        min=0.0,
        help="Seconds for which the record of a deleted instance is kept, with its attempts and migrations. It is "
        "never less than record_retention. A cell keeps the record as long as a host may still have the guest, and the "
        "super conductor keeps it as long as the cell does. After that `moorage instance show` does not find the "
        "instance.",
    ),
    cfg.FloatOpt(
        "report_interval",
        default=5.0,
        min=0.05,
        help="Seconds between two reports of a cell's hosts to the schedulers, at most a third of [scheduler] "
        "host_down_after.",
    ),
    cfg.FloatOpt(
        "failed_build_half_life",
        default=600.0,
        min=1.0,
        help="The half-life, in seconds, of the count of failed builds of a host. A guest that starts on the host also "
        "halves the count. A count below one half is ignored.",
    ),
    cfg.ListOpt(
        "reported_image_properties",
        default=[],
        help="Image properties that a cell reports to the schedulers: for each host, the number of servers per value. "
        "The weigher `image_properties` needs them. If the list is empty, no image is read.",
    ),
]
