"""The options of Placement's HTTP API: group `placement_api`."""

from oslo_config import cfg

_KEYSTONE = (
    "keystonemiddleware, which the extra `keystone` of the package brings, asks Keystone, as [keystone_authtoken] says"
)
_NOAUTH2 = (
    "every token is believed, `user[:project]`, where the user `admin` has the role of that name; for tests, and for "
    "networks that nobody else reaches"
)

PLACEMENT_API = [
    cfg.StrOpt(
        "auth_strategy",
        default="keystone",
        choices=[("keystone", _KEYSTONE), ("noauth2", _NOAUTH2)],
        help="Who tells who asks.",
    ),
    cfg.HostAddressOpt("host", default="127.0.0.1", help="The address that `moorage placement-api` listens on."),
    cfg.PortOpt("port", default=8778, help="The port that `moorage placement-api` listens on."),
    cfg.BoolOpt(
        "serve_metrics",
        default=False,
        help="Whether GET /metrics is answered at the API's port, for all of its processes together. Whoever reaches "
        "the port may read them, without a token. /healthz and /readyz are always answered.",
    ),
    cfg.IntOpt("workers", default=2, min=1, help="Processes of `moorage placement-api`."),
    cfg.IntOpt("threads", default=8, min=1, help="Threads of each of them; each has a connection to the database."),
    cfg.FloatOpt(
        "stop_timeout",
        default=8.0,
        min=0.0,
        help="Seconds that requests under way are given when `moorage placement-api` is told to stop. A second signal "
        "gives them none.",
    ),
    cfg.FloatOpt(
        "receive_timeout",
        default=30.0,
        min=1.0,
        help="Seconds that a client has to send a whole request, headers and body; a slower one is refused with 408. "
        "No thread waits for it.",
    ),
    cfg.FloatOpt(
        "request_timeout",
        default=60.0,
        min=1.0,
        help="Seconds for which a request that has arrived is worth an answer. One that has waited longer for a "
        "thread, or comes to its COMMIT later, is refused with 503 and writes nothing. Keep it no shorter than clients "
        "wait.",
    ),
    cfg.IntOpt(
        "max_body_bytes",
        default=16 * 2**20,
        min=1024,
        help="The longest body that a request may have; a longer one is refused with 413.",
    ),
    cfg.IntOpt(
        "max_allocation_candidates",
        default=100_000,
        min=1,
        help="How many allocation candidates one answer has at most, also where the request names no limit. One host "
        "of many equal devices may have millions of them.",
    ),
    cfg.BoolOpt(
        "randomize_allocation_candidates",
        default=False,
        help="Whether allocation candidates come in any order, of any hosts, instead of those first that were created "
        "first. Clients that take the first candidates of a limited answer then spread over the cloud. The numbers of "
        "all root providers are read for it.",
    ),
    cfg.BoolOpt(
        "fold_allocation_candidates",
        default=False,
        help="Whether allocation candidates that differ only in which request group has which of two equal providers "
        "are one. A host of eight equal devices then has one candidate for eight groups, and else 40320, as in "
        "Placement.",
    ),
    cfg.StrOpt(
        "incomplete_consumer_project_id",
        default="00000000-0000-0000-0000-000000000000",
        help="The project of a consumer that is created by a request before microversion 1.8, which names none.",
    ),
    cfg.StrOpt(
        "incomplete_consumer_user_id",
        default="00000000-0000-0000-0000-000000000000",
        help="The user of such a consumer.",
    ),
]
