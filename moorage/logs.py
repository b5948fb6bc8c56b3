"""The log set-up over oslo.log: each line names its service, request and attempt."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from types import SimpleNamespace
from typing import Any

from oslo_config import cfg
from oslo_log import _options, formatters, log, versionutils

from moorage import context, errors
from moorage.control_characters import escaped

_LINE = (
    "%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s [%(service)s %(request_id)s %(attempt_id)s] %(message)s"
)
_TRACEBACK_LINE = "%(asctime)s.%(msecs)03d %(process)d ERROR %(name)s [%(service)s %(request_id)s %(attempt_id)s] "
_DEFAULTS: Mapping[str, Any] = {
    # oslo.log chooses one of two formats by whether a line has a request id. Here each line has one, at least a dash.
    "logging_context_format_string": _LINE,
    "logging_default_format_string": _LINE,
    "logging_exception_prefix": _TRACEBACK_LINE,
    # Alembic logs each of its checks at level INFO. The AMQP library logs a warning for each message that it receives
    # while it closes a channel, which happens at every stop of a service.
    "default_log_levels": [
        *(level for level in log.get_default_log_levels() if not level.startswith("amqp=")),
        *("alembic=WARN", "amqp=ERROR"),
    ],
}
#: The loggers whose lines are not repeated, with the lowest level of these lines. As long as a broker or a database is
#: away, each connection logs each try, and each call and each periodic task logs its failure: many lines a second.
_OF_OUTAGES = {
    "oslo.messaging._drivers.impl_rabbit": logging.INFO,
    "moorage.bus.rabbit.connection": logging.WARNING,
    "moorage.db.database": logging.WARNING,
    "moorage.service.process.tasks": logging.WARNING,
}
#: Seconds for which their lines are not repeated, and the most lines that are remembered. Arbitrary.
_REPEATED_SECONDS, _REPEATED_LINES = 60.0, 1000
#: The beginning of each further line of a message.
_CONTINUED = "    "
#: The fields of a line that come from the context; lines in JSON have them in `extra`.
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
        # oslo.log adds the fields with these names to a line in JSON.
        record.extra_keys = [*getattr(record, "extra_keys", ()), *_FIELDS]
        return True


class _Repeated(logging.Filter):
    """Lets equal lines pass once a minute, each with the number of lines like it that were left out before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # Reentrant: the garbage collector may run while it is held, and close a connection, which logs.
        self._lock = threading.RLock()
        #: By line, the time when it last passed, and the number that was left out since.
        self._passed: dict[tuple[object, ...], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record passes."""
        if record.levelno < _OF_OUTAGES[record.name]:
            return True
        with self._lock:
            if "] Reconnected to AMQP server" in str(record.msg):
                # What is logged of the next interruption is new, and has the numbers of this one.
                before = self._passed.copy()  # a line that is logged meanwhile in this thread changes the other one
                self._passed = {line: (float("-inf"), left_out) for line, (_at, left_out) in before.items()}
                return True
            try:
                line, now = _without_connection(record), self._clock()
            except Exception:  # noqa: BLE001 - the handler reports a record that it cannot format; its caller goes on
                return True
            passed_at, left_out = self._passed.get(line, (float("-inf"), 0))
            if now - passed_at < _REPEATED_SECONDS:
                self._passed[line] = passed_at, left_out + 1
                return False
            if len(self._passed) > _REPEATED_LINES:
                self._passed.clear()
            self._passed[line] = now, 0
        if left_out:
            record.msg = f"{record.msg} ({left_out} lines like this were left out before)"
        return True


#: Of this process.
_NOT_AGAIN = _Repeated()


def _without_connection(record: logging.LogRecord) -> tuple[object, ...]:
    """Return what distinguishes a line from others, without the number of its connection and of its try."""
    if isinstance(record.args, Mapping):
        return record.msg, *(str(record.args.get(name)) for name in ("hostname", "port", "topic", "queue", "err_str"))
    # The message of an unexpected fault does not name the fault, and its traceback follows.
    return record.msg, record.getMessage(), record.exc_info and repr(record.exc_info[1])


class _SafeLines(logging.Formatter):
    """Formats lines as another formatter does, with escaped control characters and without a repeated error summary.

    Names in a message may contain a line break, which must not begin a line that looks like one of the log. oslo.log
    appends the exception in progress to each warning and error, even if the message already contains it.
    """

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, followed by its traceback."""
        line = self._lines.format(record)
        summary: str = getattr(record, "error_summary", "")
        fault = summary.partition(": ")[2]
        if fault and fault in record.message:
            line = line.replace(f"{record.message}: {summary}", record.message, 1)
        # Lines in JSON have no message of their own. Each line of a traceback has the prefix of the log already.
        for text, begin in (
            (getattr(record, "message", ""), _CONTINUED),
            (summary, _CONTINUED),
            (record.exc_text or "", ""),
        ):
            if not text.isprintable():
                line = line.replace(text, escaped(text).replace("\n", f"\n{begin}"), 1)
        return line


def register_options(conf: cfg.ConfigOpts) -> None:
    """Register the options of oslo.log, with Moorage's line format as the default."""
    log.register_options(conf)
    # The library makes these options of the command line, which are checked before any others: oslo.config ends the
    # process at a wrong value in a file, also at a reload, with a line that does not name the file.
    file_options = [*_options.common_cli_opts, *_options.logging_cli_opts]
    conf.unregister_opts(file_options)
    conf.register_opts(file_options)
    # The library lists this option, but registers it only on the global configuration.
    conf.register_opts(versionutils.deprecated_opts)
    conf.register_opt(_SERVICE_NAME)
    for name, value in _DEFAULTS.items():
        conf.set_default(name, value)


def set_library_defaults() -> None:
    """Replace the library's defaults by Moorage's in the whole process; used for the sample configuration."""
    cfg.set_defaults([*_options.generic_log_opts, *_options.log_opts], **_DEFAULTS)


_OF_OPTIONS = (logging.getLogger("oslo_config"), logging.getLogger("moorage.config"))
#: Keeps the records of oslo.config and of our own check, which log deprecated and unknown options while the options of
#: the log are read. A `MemoryHandler` without a target keeps them also when `log_config_append` closes all handlers.
_HELD = MemoryHandler(sys.maxsize)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold back what is logged of the options until :func:`setup`, at the latest until exit.

    For a service that reads its options: what is deprecated among them belongs to the log that they define.
    """
    for logger in _OF_OPTIONS:
        logger.addHandler(_HELD)
        logger.propagate = False
    try:
        yield
    finally:
        _let_go()


def _let_go() -> None:
    """Hold back nothing more, and give the records that were held back to the present handlers."""
    for logger in _OF_OPTIONS:
        logger.removeHandler(_HELD)
        logger.propagate = True
    records, _HELD.buffer = _HELD.buffer, []
    for record in records:
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)


def setup(conf: cfg.ConfigOpts, service: str) -> None:
    """Set up the log handlers by the configuration; each line carries the name ``service``.

    Handlers belong to the process. If several services share a process, the last call decides where lines go. A line
    carries the service of its thread's context (set in threads of an RPC server), or else the name in the last call.

    :raises ConfigurationError: the options name a file that cannot be written, a level or a format that does not exist,
        or something that this machine does not have.
    """
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        _set_up(conf, service)
    except (log.LogConfigError, KeyError, OSError, RuntimeError, TypeError, ValueError) as fault:
        root.handlers[:] = before  # which can write the error
        files = ", ".join(conf.config_file or ()) or "the environment"
        why = f"a format has the unknown field {fault}" if isinstance(fault, KeyError) else fault
        reason = f"the log cannot be set up by the options of [DEFAULT] in {files}: {why}"
        raise errors.ConfigurationError(reason=reason) from fault
    _let_go()


def _set_up(conf: cfg.ConfigOpts, service: str) -> None:
    conf.set_default("log_service_name", service)
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if any(isinstance(one, _ContextFilter) for one in handler.filters)]
    log.setup(conf, service, fix_eventlet=False)
    for name in _OF_OUTAGES:
        logging.getLogger(name).addFilter(_NOT_AGAIN)
    for handler in ours:
        handler.close()  # oslo.log removes the former handlers, but leaves their files open
    for handler in root.handlers:
        handler.addFilter(_ContextFilter(service_name(conf) or service))
        if handler.formatter:
            if isinstance(handler.formatter, formatters.ContextFormatter):
                # Read the options once: the library would read them for each line.
                names = [option.dest for option in _options.log_opts]
                handler.formatter.conf = SimpleNamespace(**{name: conf[name] for name in names})
            handler.setFormatter(_SafeLines(handler.formatter))
            # With a format that cannot be filled in, each line would be a traceback instead. There are three formats.
            fault = Exception()
            for level, raised in (
                (logging.INFO, None),
                (logging.DEBUG, None),
                (logging.ERROR, (type(fault), fault, None)),
            ):
                line = logging.LogRecord(__name__, level, __file__, 0, "", None, raised)
                handler.filter(line)
                handler.format(line)


def service_name(conf: cfg.ConfigOpts) -> str | None:
    """Return the configured service name, or None."""
    name: str | None = getattr(conf, "log_service_name", None)  # a command has no options of the log
    return name
