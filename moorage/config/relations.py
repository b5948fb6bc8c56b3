"""Checks of options whose values must fit each other; each option alone may have any value of its range."""

from typing import NamedTuple

from oslo_config import cfg

from moorage import errors

_Name = tuple[str, str]


class _AtLeast(NamedTuple):
    """An option that must be at least so many times another one; ``reason`` is what happens otherwise.

    :param more: seconds that are added to the product.
    """

    greater: _Name
    times: int
    smaller: _Name
    reason: str
    more: int = 0


_HOST_DOWN_AFTER = ("scheduler", "host_down_after")
#: The time between a host's report and its recorded heartbeat is up to both intervals and a sixth of host_down_after.
_RELATIONS = (
    _AtLeast(_HOST_DOWN_AFTER, 3, ("compute", "report_interval"), "hosts count as down between two reports"),
    _AtLeast(_HOST_DOWN_AFTER, 3, ("conductor", "report_interval"), "hosts count as down between two reports"),
    _AtLeast(
        ("service", "silent_after"), 2, ("service", "report_interval"), "services count as silent between two reports"
    ),
    # The time of a statement begins before its lock wait, which is rounded to whole seconds.
    _AtLeast(
        ("database", "statement_timeout"),
        1,
        ("database", "lock_wait_timeout"),
        "a statement that waits for a row lock is ended, and its transaction is not tried again",
        more=1,
    ),
    _AtLeast(
        ("conductor", "lease_seconds"),
        1,
        ("database", "idle_transaction_timeout"),
        "rows of a stopped conductor stay locked after another one has taken over",
    ),
    _AtLeast(
        ("scheduler", "feed_retention"),
        1,
        ("scheduler", "view_compare_interval"),
        "a scheduler without requests misses the changes between two comparisons",
    ),
)


def check(conf: cfg.ConfigOpts, files: str) -> None:
    """Refuse values that do not fit each other, if a user has set one of them.

    :param files: the names of the files, for the error.
    :raises ConfigurationError: the error names both options, their values and the files.
    """
    for greater, times, smaller, reason, more in _RELATIONS:
        values = [conf[group][name] for group, name in (greater, smaller)]
        if values[0] < times * values[1] + more and (_is_set(conf, *greater) or _is_set(conf, *smaller)):
            [one, other] = [f"[{group}] {name}" for group, name in (greater, smaller)]
            least = f"{times} times {other}" if times > 1 else f"{more} second more than {other}" if more else other
            raise errors.ConfigurationError(
                reason=f"{one} in {files} is {values[0]} and must be at least {least}, which is {values[1]}: "
                f"otherwise {reason}. Set both options in each file that has one of them"
            )


def _is_set(conf: cfg.ConfigOpts, group: str, name: str) -> bool:
    where = conf.get_location(name, group)
    return bool(where and where.location.is_user_controlled)
