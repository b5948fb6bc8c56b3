"""Records of failed builds, by host: a failure counts less with time, and with every guest that starts there.

Every failure is a row with a weight, at first 1. Each guest that starts on the host halves the weights, which has the
same effect as one half-life. So nothing is written when time passes, and the rows can be added up in any order. It
does not matter whether host, image or request has caused it. Each function is a part of the caller's transaction.
"""

import math
from collections import Counter
from collections.abc import Iterable

from sqlalchemy import Connection, Double, bindparam, case, func, select

from conductor.schema import cell_failed_builds
from moorage.db.columns import now

#: A smaller count is reported as 0, so that one failure counts for one half-life. The weigher ranks a host with any
#: count, however small, behind all hosts without one.
_LEAST = 0.5
#: The number of half-lives after which a failure is deleted: even hundreds of such failures do not count.
_FORGOTTEN_AFTER = 12
#: The most failures that one transaction deletes. Arbitrary.
_DELETED_AT_ONCE = 1000
#: The steps between a power of two and the next, so that a reported count changes at most twice in a half-life.
_STEPS = (1.0, 1.5, 2.0)

# Most hosts have no row: then this reads one index entry.
_HALVING = (
    cell_failed_builds.update()
    .where(
        cell_failed_builds.c.cell_uuid == bindparam("cell"),
        cell_failed_builds.c.host.in_(bindparam("hosts", expanding=True)),
    )
    .values(weight=cell_failed_builds.c.weight * bindparam("factor"))
)

# SELECT host, SUM(CASE WHEN age <= 12 THEN weight * POW(0.5, age) ELSE 0 END), MAX(age) FROM cell_failed_builds
#  WHERE cell_uuid = :cell GROUP BY host, where age is (now - failed_at) / :half_life
# If the clock is set back, a failure must not count more than before.
_PASSED = now() - cell_failed_builds.c.failed_at
_AGE = case((_PASSED > 0.0, _PASSED), else_=0.0) / bindparam("half_life", type_=Double)
_COUNTED = case((_AGE <= _FORGOTTEN_AFTER, cell_failed_builds.c.weight * func.pow(0.5, _AGE)), else_=0.0)
_SUMS = (
    select(cell_failed_builds.c.host, func.sum(_COUNTED).label("total"), func.max(_AGE).label("oldest"))
    .where(cell_failed_builds.c.cell_uuid == bindparam("cell"))
    .group_by(cell_failed_builds.c.host)
)
_OLD = (
    select(cell_failed_builds.c.attempt_id)
    .where(
        cell_failed_builds.c.cell_uuid == bindparam("cell"),
        cell_failed_builds.c.failed_at < now() - bindparam("seconds", type_=Double),
    )
    .limit(_DELETED_AT_ONCE)
)


def add(connection: Connection, cell_uuid: str, attempt_id: str, host: str) -> None:
    """Insert the failure of an attempt unless it is on record; the caller has locked the instance."""
    table = cell_failed_builds.c
    known = select(table.attempt_id).where(table.cell_uuid == cell_uuid, table.attempt_id == attempt_id)
    if connection.execute(known).first() is None:
        connection.execute(
            cell_failed_builds.insert().values(
                cell_uuid=cell_uuid, attempt_id=attempt_id, host=host, weight=1.0, failed_at=now()
            )
        )


def halve(connection: Connection, cell_uuid: str, hosts: Iterable[str]) -> None:
    """Halve the weights of hosts' failures, once for each guest that has started (each time a host is named)."""
    guests = Counter(hosts)
    for started in sorted(set(guests.values())):
        names = sorted(host for host, count in guests.items() if count == started)
        connection.execute(_HALVING, {"cell": cell_uuid, "hosts": names, "factor": 0.5**started})


def counts(connection: Connection, cell_uuid: str, half_life: float) -> tuple[dict[str, float], bool]:
    """Return the current count of each host that has one, and whether there are failures that no longer count."""
    found = connection.execute(_SUMS, {"cell": cell_uuid, "half_life": half_life}).all()
    by_host = {row.host: count for row in found if (count := in_steps(row.total))}
    return by_host, any(row.oldest > _FORGOTTEN_AFTER for row in found)


def forget_old(connection: Connection, cell_uuid: str, half_life: float) -> None:
    """Delete failures that no longer count, but only a limited number of them in one transaction."""
    # Delete by keys that were read without a lock: builds that fail at this moment do not wait for it.
    old = list(connection.scalars(_OLD, {"cell": cell_uuid, "seconds": _FORGOTTEN_AFTER * half_life}))
    table = cell_failed_builds
    connection.execute(table.delete().where(table.c.cell_uuid == cell_uuid, table.c.attempt_id.in_(old)))


def in_steps(count: float) -> float:
    """Round a count to the value of 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, … with the smallest ratio; below 0.5 to 0."""
    if count < _LEAST:
        return 0.0
    below = 2.0 ** math.floor(math.log2(count))
    return min((below * step for step in _STEPS), key=lambda rounded: abs(math.log(rounded / count)))
