"""All options of all services, and functions that read a service's configuration."""

import math
import os
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from oslo_config import cfg

from moorage import errors
from moorage.config import compute, conductor, dashboard, placement_api, relations, scheduler, unknown

DEFAULT_FILE = Path("/etc/moorage/moorage.conf")
#: The greatest value of Moorage's own numbers that have a minimum: a thread can wait for so many seconds (292 years).
_GREATEST = threading.TIMEOUT_MAX
#: The file of a value in messages of oslo.config, in a format for developers.
_PLACE = re.compile(r"from LocationInfo\(location=<[^>]*>, detail='([^']*)'\)")
#: What Python says of a text that is no number, before the text.
_NO_NUMBER = re.compile(r"(invalid literal for int\(\) with base 10|could not convert string to float): (.+)")

#: The URL of an SQLite database without a file.
_IN_MEMORY = re.compile(r"sqlite(\+\w+)?:/{2,3}(:memory:)?(\?.*)?")

_DATABASE = [
    cfg.StrOpt(
        "connection",
        secret=True,
        help="The URL of the database with the main schema (resource providers, allocations, hosts, cells). An "
        "SQLAlchemy URL such as mysql+pymysql://user:password@127.0.0.1/moorage?charset=utf8mb4, or sqlite:////path "
        "for small installations. For a database cluster, list several hosts, as in "
        "user:password@db1:3306,db2:3306,db3:3306/moorage, in the same order for all processes: the first available "
        "host is used. Every service that uses a database needs this option.",
    ),
    cfg.IntOpt(
        "pool_size",
        default=16,
        min=1,
        help="The maximum number of connections of a process for its requests. A thread waits if none is free. Each "
        "process has one more, which checks whether the database can be reached, and each scheduler two more, for the "
        "reports of hosts. The Placement API and the dashboard have one for each of their threads instead, and the one "
        "for the check.",
    ),
    cfg.FloatOpt("pool_timeout", default=10.0, min=0.1, help="Seconds to wait for a free connection of the pool."),
    cfg.FloatOpt(
        "lock_wait_timeout",
        default=2.0,
        min=1.0,
        help="Seconds to wait for a row lock, rounded to whole seconds. statement_timeout is at least one second more.",
    ),
    cfg.FloatOpt(
        "statement_timeout",
        default=15.0,
        min=1.0,
        help="The maximum time of a statement, in seconds; it is at least one second more than lock_wait_timeout. "
        "MariaDB then ends any statement, MySQL only one that reads. A connection that does not answer for 5 more "
        "seconds counts as lost, and so do all older connections of the pool.",
    ),
    cfg.IntOpt(
        "max_transaction_tries",
        default=20,
        min=1,
        help="The number of times a transaction is tried if it collides with others (deadlock, lock wait, snapshot). "
        "If a row lock does not become free, the transaction fails after five waits.",
    ),
    cfg.FloatOpt(
        "idle_transaction_timeout",
        default=30.0,
        min=0.0,
        help="Seconds after which MariaDB rolls back an idle transaction, such as one of a stopped process or of a "
        "machine without a network. The transaction is then tried again. It is at most [conductor] lease_seconds, so "
        "that the rows are unlocked when another conductor takes over. 0 means never. MySQL has no such limit.",
    ),
]

_RPC = [
    cfg.FloatOpt(
        "call_timeout",
        default=30.0,
        min=0.1,
        help="Seconds to wait for the answer to an RPC call. Use the same value for the super conductor, the cell "
        "conductors and the placement role: a cell must answer the super conductor within a third of it, and stored "
        "answers are kept until no call can be repeated any more.",
    ),
    cfg.IntOpt(
        "send_retries",
        default=2,
        min=0,
        help="The number of times that sending a message is retried while the broker cannot be reached.",
    ),
    cfg.IntOpt(
        "threads",
        default=24,
        min=1,
        help="The number of threads of each RPC server. Requests that are handled at the same time can share a "
        "transaction, so more threads than processors are useful.",
    ),
]

_SERVICE = [
    cfg.FloatOpt(
        "report_interval",
        default=10.0,
        min=0.05,
        help="Seconds between two heartbeats of a service, at most half of silent_after. `moorage service list` shows "
        "them.",
    ),
    cfg.FloatOpt(
        "silent_after",
        default=60.0,
        min=0.1,
        help="Seconds without a heartbeat after which a service or agent counts as silent, at least twice "
        "report_interval. `moorage status` and `moorage service list` report it, and commands that ask all schedulers "
        "leave out silent ones. Cell conductors record the heartbeats of hosts at least once in a sixth of it.",
    ),
    cfg.FloatOpt(
        "prune_interval",
        default=60.0,
        min=0.05,
        help="Seconds between two rounds in which schedulers, placement roles and conductors delete expired rows. Rows "
        "are kept for up to this much longer than their retention.",
    ),
    cfg.HostAddressOpt(
        "metrics_host",
        default="127.0.0.1",
        help="The address on which each service serves /metrics, /healthz and /readyz over HTTP if metrics_port is "
        "set. They need no authentication: choose an address that only trusted clients can reach.",
    ),
    cfg.PortOpt(
        "metrics_port",
        help="The port for /metrics, /healthz and /readyz. If it is unset or 0, they are not served. Services on the "
        "same machine need different ports: use the option --metrics-port of the command that starts each of them. If "
        "[scheduler] workers is more than 1, each worker uses the next port. The placement API serves them on its own "
        "port: see [placement_api] serve_metrics.",
    ),
]

_PLACEMENT = [
    cfg.FloatOpt(
        "reconcile_interval",
        default=30.0,
        min=0.05,
        help="Seconds between two rounds in which the reconciler asks the owners of unaccepted claims whether they "
        "still want them.",
    ),
    cfg.FloatOpt(
        "reconcile_after",
        default=120.0,
        min=0.0,
        help="Seconds after which the reconciler asks the owner of an unaccepted claim whether it still wants it. The "
        "claim is released only if the owner does not want it, no matter how old it is.",
    ),
    cfg.FloatOpt(
        "request_retention",
        default=3600.0,
        min=0.0,
        help="Seconds for which the answer to a request is kept after the caller has acknowledged it. It is always "
        "kept for as long as a repeated request can take to arrive.",
    ),
    cfg.FloatOpt(
        "unacknowledged_retention",
        default=7 * 86400.0,
        min=0.0,
        help="Seconds for which an unacknowledged answer to a request is kept. It is never less than for an "
        "acknowledged one. Choose more than the longest time for which a conductor may be stopped.",
    ),
    cfg.FloatOpt(
        "tombstone_retention",
        default=30 * 86400.0,
        min=0.0,
        help="Seconds for which the mark of a deleted consumer (its tombstone) is kept. It is never less than the "
        "retention of any answer.",
    ),
]

_TRACING = [
    cfg.StrOpt(
        "otlp_endpoint",
        help="The URL of an OpenTelemetry collector that accepts OTLP over HTTP, such as "
        "http://collector:4318/v1/traces. The spans of requests are sent there. If it is not set, there are no spans. "
        "It needs `pip install 'moorage[tracing]'`.",
    ),
    cfg.FloatOpt(
        "sample_ratio",
        default=1.0,
        min=0.0,
        max=1.0,
        help="The fraction of requests that are traced, from 0 to 1. It is applied to the request id: use the same "
        "value for all services.",
    ),
]

GROUPS: Mapping[str, Sequence[cfg.Opt]] = {
    "database": _DATABASE,
    "rpc": _RPC,
    "service": _SERVICE,
    "tracing": _TRACING,
    "scheduler": scheduler.SCHEDULER,
    "placement": _PLACEMENT,
    "conductor": conductor.CONDUCTOR,
    "compute": compute.COMPUTE,
    "fake_driver": compute.FAKE_DRIVER,
    "placement_api": placement_api.PLACEMENT_API,
    "dashboard": dashboard.DASHBOARD,
}


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return all options by group, for oslo-config-generator."""
    return [(group, list(options)) for group, options in GROUPS.items()]


def set_library_defaults() -> None:
    """Replace the libraries' defaults by Moorage's, for the sample configuration."""
    from moorage import logs
    from moorage.config import messaging  # here, because not every command needs the bus library

    logs.set_library_defaults()
    messaging.set_library_defaults()


def new(settings: Mapping[str, Mapping[str, Any]] | None = None, files: Sequence[Path] = ()) -> cfg.ConfigOpts:
    """Return a separate configuration from ``files``; ``settings`` (group, name, value) take precedence over them.

    :raises ConfigurationError: a file cannot be read, has an unknown option or section, a value is not of its option's
        type, or two values do not fit each other.
    """
    from moorage import logs
    from moorage.config import messaging  # here, because not every command needs the bus library

    conf = cfg.ConfigOpts()
    logs.register_options(conf)
    messaging.register_options(conf)
    for group, options in GROUPS.items():
        conf.register_opts(options, group=group)
    return filled(conf, files, settings)


def filled(
    conf: cfg.ConfigOpts,
    files: Sequence[Path],
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    unread: Collection[str] = (),
) -> cfg.ConfigOpts:
    """Fill a configuration, whose options are registered, from files and settings, and return it.

    :param unread: the sections that may have further options.
    :raises ConfigurationError: see :func:`new`.
    """
    try:
        conf([], project="moorage", default_config_files=[str(file) for file in files], default_config_dirs=[])
        unknown.check(conf, files, unread)
        unknown.warn_of_variables(conf, GROUPS.keys())
        for group, values in (settings or {}).items():
            for name, value in values.items():
                _override(conf, group, name, value)
        check(conf, files)
        relations.check(conf, _files(conf))
    except UnicodeDecodeError as fault:
        reason = f"{_files(conf)} is not text in UTF-8"
        raise errors.ConfigurationError(reason=reason) from fault
    except (cfg.Error, ValueError) as fault:
        raise errors.ConfigurationError(reason=_in_words(fault, conf)) from fault
    except OSError as fault:
        raise errors.ConfigurationError(reason=f"{fault.filename} cannot be read: {fault.strerror}") from fault
    return conf


def _override(conf: cfg.ConfigOpts, group: str, name: str, value: Any) -> None:
    """Set an option of the settings.

    :raises ConfigurationError: it cannot have this value; the library's error has no name.
    """
    try:
        conf.set_override(name, value, group=None if group == "DEFAULT" else group)
    except (ValueError, TypeError, AttributeError, OverflowError) as fault:  # by the type of the option
        reason = f"Value for option [{group}] {name} is not valid: {_in_words(fault, conf)}"
        raise errors.ConfigurationError(reason=reason) from fault


def _in_words(fault: Exception, conf: cfg.ConfigOpts) -> str:
    """Return the message of an oslo.config error, with the file and the reason in a format for operators."""
    text = _PLACE.sub(lambda place: f"in {place[1] or _files(conf)}", str(fault))
    return _NO_NUMBER.sub(lambda found: f"{found[2]} is not a {'whole ' if 'int' in found[1] else ''}number", text)


def _files(conf: cfg.ConfigOpts) -> str:
    """Return the names of the files: the library does not know the place of a value in a section in capitals."""
    return ", ".join(conf.config_file or ()) or "the environment"


def check(conf: cfg.ConfigOpts, files: Sequence[Path]) -> None:
    """Check every option that files or the environment set, so that a wrong value is found before a service starts.

    Defaults are not read: most of the several hundred options have theirs, and overrides are checked when they are set.

    :raises ConfigurationError: a value is not one of its option; the error names the file, the section and the option.
    """
    written = {(group, name) for _, group, names in unknown.written(files) for name in names}
    for group, listed in unknown.registered(conf):
        for option in listed:
            names = unknown.names_of(group, option)
            # The library reads such variables.
            if not written.isdisjoint(names) or any(
                f"OS_{section.upper()}__{name.upper()}" in os.environ for section, name in names
            ):
                checked(conf, group, option)


def checked(conf: cfg.ConfigOpts, group: str, option: cfg.Opt, greatest: float = _GREATEST) -> Any:
    """Return the value of a registered option.

    :param greatest: the greatest value of a number that has a minimum.
    :raises ConfigurationError: see :func:`check`.
    """
    named = f"Value for option [{group}] {option.dest}"
    try:
        value = conf[option.dest] if group == "DEFAULT" else conf[group][option.dest]
    except cfg.NoSuchOptError as fault:
        # The library cannot fill in what begins with `$`, and says that there is no such option.
        reason = f"{named} in {_files(conf)} is not valid: {fault.__context__}. Write $$ for one $"
        raise errors.ConfigurationError(reason=reason) from fault
    except ValueError as fault:
        reason = _in_words(fault, conf).replace(f"Value for option {option.name}", named, 1)
        raise errors.ConfigurationError(reason=reason) from fault
    where = conf.get_location(option.dest, None if group == "DEFAULT" else group)
    if where and where.location.is_user_controlled and (wrong := _what_is_wrong(option, value, greatest)):
        raise errors.ConfigurationError(reason=f"{named} in {where.detail or _files(conf)} is not valid: {wrong}")
    return value


def _what_is_wrong(option: cfg.Opt, value: object, greatest: float) -> str:
    """Return why an option cannot have a value that oslo.config accepts; an empty text if it can."""
    if value is None:
        # oslo.config reads an empty number or switch as null.
        may_be_null = option.default is None or isinstance(option, cfg.StrOpt)
        return "" if may_be_null else "it is empty"
    if isinstance(value, float) and not math.isfinite(value):
        return "it is not finite"
    if isinstance(value, int | float) and getattr(option.type, "min", None) is not None and value > greatest:
        return f"it is more than {greatest:.10g}"
    return ""


def required(conf: cfg.ConfigOpts, group: str, name: str) -> str:
    """Return the value of an option that has no default.

    :raises ConfigurationError: the option is not set; the error names the files that were read.
    """
    value: str | None = conf[name] if group == "DEFAULT" else conf[group][name]
    if value:
        return value
    if conf.config_file:
        where = f"not set in {', '.join(conf.config_file)}"
    else:
        where = (
            "not set, and no configuration file was read: name one with --config-file or MOORAGE_CONFIG, or write "
            f"{DEFAULT_FILE}"
        )
    raise errors.ConfigurationError(reason=f"[{group}] {name} is {where}")


def main_database(conf: cfg.ConfigOpts) -> str:
    """Return the URL of the main schema.

    :raises ConfigurationError: no URL is set, or it is that of a database that no other process can open.
    """
    url = required(conf, "database", "connection")
    if _IN_MEMORY.fullmatch(url):
        reason = f"[database] connection {url} is a database in memory, which ends with its process: sqlite:////path"
        raise errors.ConfigurationError(reason=f"{reason} is one in a file")
    return url


def find_file(named: str | None) -> list[Path]:
    """Return the configuration file to read: the named one, else ``MOORAGE_CONFIG``, else the file in /etc, if any.

    :raises ConfigurationError: the named file does not exist, something else than a file is in its place, or a file
        cannot be looked for.
    """
    chosen = named or os.environ.get("MOORAGE_CONFIG")
    file = Path(chosen) if chosen else DEFAULT_FILE
    try:
        exists, is_file = file.exists(), file.is_file() or file.is_char_device()
    except OSError as fault:
        raise errors.ConfigurationError(reason=f"{fault.filename} cannot be read: {fault.strerror}") from fault
    # A container engine that mounts a missing file creates a directory of its name. A pipe could not be read twice.
    # /dev/null is an empty file, by which systemd and others mask one.
    if exists and not is_file:
        what = "a directory" if file.is_dir() else "not a regular file"
        raise errors.ConfigurationError(reason=f"the configuration file {chosen or file} is {what}")
    if chosen and not exists:
        raise errors.ConfigurationError(reason=f"there is no configuration file {chosen}")
    return [file] if exists else []
