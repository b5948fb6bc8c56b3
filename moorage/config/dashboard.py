"""The options of the operators' web page: group `dashboard`."""

from oslo_config import cfg

DASHBOARD = [
    cfg.HostAddressOpt("host", default="127.0.0.1", help="The address that `moorage dashboard` listens on."),
    cfg.PortOpt("port", default=8779, help="The port that `moorage dashboard` listens on."),
    cfg.IntOpt(
        "threads",
        default=8,
        min=1,
        help="The number of threads that answer requests. Each may use a database connection. All but two may wait for "
        "a conductor or a scheduler.",
    ),
    cfg.FloatOpt(
        "refresh_interval",
        default=2.0,
        min=0.5,
        help="Seconds for which the dashboard caches an answer of the cloud for all viewers, and after which an open "
        "page asks for changes. Without viewers, the dashboard asks nothing.",
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
        help="The number of the newest instances that the page lists.",
    ),
]
