"""The options of Placement's HTTP API: group `placement_api`."""

from oslo_config import cfg

_KEYSTONE = (
    "keystonemiddleware validates tokens with Keystone, as configured in [keystone_authtoken]; it needs the extra "
    "`keystone` of the package"
)
_NOAUTH2 = (
    "every token `user[:project]` is accepted without a check, and the user `admin` has the role admin; only for tests "
    "and isolated networks"
)

#: The ids of projects and users have up to 255 characters, as in requests.
_OWNER = "^.{0,254}\\S\\Z"

PLACEMENT_API = [
    cfg.StrOpt(
        "auth_strategy",
        default="keystone",
        choices=[("keystone", _KEYSTONE), ("noauth2", _NOAUTH2)],
        help="How clients are authenticated.",
    ),
    cfg.HostAddressOpt("host", default="127.0.0.1", help="The address that `moorage placement-api` listens on."),
    cfg.PortOpt("port", default=8778, help="The port that `moorage placement-api` listens on."),
    cfg.BoolOpt(
        "serve_metrics",
        default=False,
        help="Whether the API serves GET /metrics on its port, for all of its processes together and without "
        "authentication. /healthz and /readyz are always served.",
    ),
    cfg.IntOpt("workers", default=2, min=1, help="The number of processes of `moorage placement-api`."),
    cfg.IntOpt(
        "threads",
        default=8,
        min=1,
        help="The number of threads of each process. Each thread uses a database connection.",
    ),
    cfg.FloatOpt(
        "stop_timeout",
        default=8.0,
        min=0.0,
        help="Seconds to wait for requests in progress when `moorage placement-api` stops. A second signal ends it "
        "immediately.",
    ),
    cfg.FloatOpt(
        "receive_timeout",
        default=30.0,
        min=1.0,
        help="Seconds within which a client must send a whole request, headers and body. A slower request is refused "
        "with 408. No thread waits for it.",
    ),
    cfg.FloatOpt(
        "request_timeout",
        default=60.0,
        min=1.0,
        help="Seconds within which a received request must be answered. A request that waits longer for a thread, or "
        "reaches its COMMIT later, is refused with 503 and writes nothing. Use a value no shorter than the timeout of "
        "the clients.",
    ),
    cfg.IntOpt(
        "max_body_bytes",
        default=16 * 2**20,
        min=1024,
        help="The maximum size of a request body, in bytes. A larger one is refused with 413.",
    ),
    cfg.IntOpt(
        "max_allocation_candidates",
        default=100_000,
        min=1,
        help="The maximum number of allocation candidates in an answer, also if the request sets no limit. A single "
        "host with many equal devices may have millions of candidates.",
    ),
    cfg.BoolOpt(
        "randomize_allocation_candidates",
        default=False,
        help="Whether allocation candidates are returned in random order. If false, those of the oldest providers come "
        "first. If true, clients that take the first candidates of a limited answer spread over the cloud; each "
        "request then reads the ids of all root providers.",
    ),
    cfg.BoolOpt(
        "fold_allocation_candidates",
        default=False,
        help="Whether allocation candidates that differ only in which request group uses which of several equal "
        "providers are returned as one. For eight groups, a host with eight equal devices then has one candidate. If "
        "false it has 40320, as in Placement.",
    ),
    cfg.StrOpt(
        "incomplete_consumer_project_id",
        default="00000000-0000-0000-0000-000000000000",
        regex=_OWNER,
        help="The project id of consumers that are created by requests before microversion 1.8, which do not name a "
        "project.",
    ),
    cfg.StrOpt(
        "incomplete_consumer_user_id",
        default="00000000-0000-0000-0000-000000000000",
        regex=_OWNER,
        help="The user id of consumers that are created by requests before microversion 1.8, which do not name a user.",
    ),
]
