"""The log set-up over oslo.log: each line names its service, request and attempt."""

import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from oslo_config import cfg
from oslo_log import _options, formatters, log, versionutils

from moorage import context

_LINE = (
    "%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s [%(service)s %(request_id)s %(attempt_id)s] %(message)s"
)
_TRACEBACK_LINE = "%(asctime)s.%(msecs)03d %(process)d ERROR %(name)s [%(service)s %(request_id)s %(attempt_id)s] "
_DEFAULTS: Mapping[str, Any] = {
    # oslo.log picks one of two formats by whether a line has a request id; ours always has one, at least a dash.
    "logging_context_format_string": _LINE,
    "logging_default_format_string": _LINE,
    "logging_exception_prefix": _TRACEBACK_LINE,
    # Alembic logs each of its checks at level INFO. The AMQP library warns of each message that it receives while it
    # closes a channel: that is at every stop of a service.
    "default_log_levels": [
        *(level for level in log.get_default_log_levels() if not level.startswith("amqp=")),
        *("alembic=WARN", "amqp=ERROR"),
    ],
}
#: The options that the library's formatter reads.
_FORMATS = (
    "instance_format",
    "instance_uuid_format",
    "logging_context_format_string",
    "logging_debug_format_suffix",
    "logging_default_format_string",
    "logging_exception_prefix",
    "logging_user_identity_format",
)
#: The fields that a line has of the context; lines in JSON have them in `extra`.
_FIELDS = ("service", "request_id", "attempt_id")
_SERVICE_NAME = cfg.StrOpt(
    "log_service_name",
    default="moorage",
    help="The service name in log lines. By default each service uses its own name.",
)


class _ContextFilter(logging.Filter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def filter(self, record: logging.LogRecord) -> bool:
        """Add three fields to a record and let it pass."""
        now = context.current()
        record.service = now.service or self._service
        record.request_id = now.request_id or "-"
        record.attempt_id = now.attempt_id or "-"
        # By these oslo.log finds what else a line in JSON is to have.
        record.extra_keys = [*getattr(record, "extra_keys", ()), *_FIELDS]
        return True


class _SaidOnce(logging.Formatter):
    """Formats lines as another formatter does, without a repeated error summary.

    oslo.log appends the exception that is being handled to each warning and error, also where the message contains it.
    """

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, with its traceback behind it."""
        line = self._lines.format(record)
        summary: str = getattr(record, "error_summary", "")
        fault = summary.partition(": ")[2]
        if fault and fault in record.message:
            line = line.replace(f"{record.message}: {summary}", record.message, 1)
        return line


def register_options(conf: cfg.ConfigOpts) -> None:
    """Register the options of oslo.log, with our line format as the default."""
    log.register_options(conf)
    # The library lists it and registers it on the global configuration alone.
    conf.register_opts(versionutils.deprecated_opts)
    conf.register_opt(_SERVICE_NAME)
    for name, value in _DEFAULTS.items():
        conf.set_default(name, value)


def set_library_defaults() -> None:
    """Replace the library's defaults by ours in the whole process; used for the sample configuration."""
    cfg.set_defaults([*_options.generic_log_opts, *_options.log_opts], **_DEFAULTS)


def setup(conf: cfg.ConfigOpts, service: str) -> None:
    """Set up the log handlers by the configuration; each line carries the name ``service``.

    Handlers belong to the process. Where several services share a process, the last call decides where lines go; a line
    carries the service of its thread's context (set in threads of an RPC server), else the name of the last call.
    """
    conf.set_default("log_service_name", service)
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if any(isinstance(one, _ContextFilter) for one in handler.filters)]
    log.setup(conf, service, fix_eventlet=False)
    for handler in ours:
        handler.close()  # oslo.log takes the former handlers off and leaves their files open
    for handler in root.handlers:
        handler.addFilter(_ContextFilter(service_name(conf) or service))
        if handler.formatter:
            if isinstance(handler.formatter, formatters.ContextFormatter):
                # Read once: the library reads them for each line.
                handler.formatter.conf = SimpleNamespace(**{name: conf[name] for name in _FORMATS})
            handler.setFormatter(_SaidOnce(handler.formatter))


def service_name(conf: cfg.ConfigOpts) -> str | None:
    """Return the configured service name, or None."""
    try:
        name: str = conf.log_service_name
    except cfg.NoSuchOptError:
        return None
    return name
