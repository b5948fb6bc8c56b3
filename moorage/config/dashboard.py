"""The options of the operators' page: group `dashboard`."""

from oslo_config import cfg

DASHBOARD = [
    cfg.HostAddressOpt("host", default="127.0.0.1", help="The address that `moorage dashboard` listens on."),
    cfg.PortOpt("port", default=8779, help="The port that `moorage dashboard` listens on."),
    cfg.IntOpt(
        "threads",
        default=8,
        min=1,
        help="Threads that answer requests. Each may use a connection to the database.",
    ),
    cfg.FloatOpt(
        "refresh_interval",
        default=2.0,
        min=0.5,
        help="Seconds for which an answer of the cloud is given to all viewers, and the seconds after which an open "
        "page asks for changes. Nothing is asked while nobody looks.",
    ),
    cfg.FloatOpt(
        "call_timeout",
        default=10.0,
        min=0.1,
        help="Seconds to wait for the answer of a conductor or a scheduler.",
    ),
    cfg.IntOpt(
        "recent_requests",
        default=200,
        min=1,
        max=1000,
        help="How many of the newest instances the page lists.",
    ),
]
