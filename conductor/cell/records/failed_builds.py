"""Builds that have failed on the hosts of a cell: each counts less as time goes by, and as others succeed there.

Every failure is a row with its weight, 1 at first. A guest that starts on the host halves the weights, which is as much
as a half-life of time. So nothing has to be written for time to pass, and whoever adds them up needs no order.
"""

import math
from collections.abc import Collection

from sqlalchemy import Connection, select

from conductor.schema import cell_failed_builds
from moorage.db.columns import now

#: What is less than this counts no more: of one failure, after one half-life. However little is told, it would put a
#: host behind all that have none.
_LEAST = 0.5
#: After so many half-lives nothing is left of a failure, were there hundreds.
_FORGOTTEN_AFTER = 12
#: Steps within a doubling, so that a count changes, and is told of, twice in a half-life and no more often.
_STEPS = (1.0, 1.5, 2.0)


class FailedBuilds:
    """The failed builds of one cell; each method is a part of the transaction that it is given.

    It is not told apart whether a host, an image or a request was at fault.
    """

    def __init__(self, cell_uuid: str) -> None:
        self._cell_uuid = cell_uuid

    def add(self, connection: Connection, attempt_id: str, host: str) -> None:
        """Record that an attempt has failed on a host, if it is not on record yet; its instance is locked."""
        table = cell_failed_builds.c
        known = select(table.attempt_id).where(table.cell_uuid == self._cell_uuid, table.attempt_id == attempt_id)
        if connection.execute(known).first() is None:
            connection.execute(
                cell_failed_builds.insert().values(
                    cell_uuid=self._cell_uuid, attempt_id=attempt_id, host=host, weight=1.0, failed_at=now()
                )
            )

    def halve(self, connection: Connection, host: str) -> None:
        """Record that a guest has started on a host."""
        # UPDATE cell_failed_builds SET weight = weight * 0.5 WHERE cell_uuid = :cell AND host = :host
        # Most hosts have no row: then this reads one index entry.
        table = cell_failed_builds
        connection.execute(
            table.update()
            .where(table.c.cell_uuid == self._cell_uuid, table.c.host == host)
            .values(weight=table.c.weight * 0.5)
        )

    def counts(self, connection: Connection, half_life: float) -> tuple[dict[str, float], list[str]]:
        """Return how much the failures of each host count now, where they do, and the attempts that count no more.

        :param half_life: seconds after which a failure counts half as much.
        """
        table = cell_failed_builds.c
        age = (now() - table.failed_at).label("age")
        query = select(table.attempt_id, table.host, table.weight, age).where(table.cell_uuid == self._cell_uuid)
        sums: dict[str, float] = {}
        old: list[str] = []
        for row in connection.execute(query):
            # A clock that is set back makes no failure count more than it did.
            half_lives = max(0.0, row.age) / half_life
            if half_lives > _FORGOTTEN_AFTER:
                old.append(row.attempt_id)
            else:
                sums[row.host] = sums.get(row.host, 0.0) + row.weight * 0.5**half_lives
        return {host: count for host, total in sums.items() if (count := in_steps(total))}, old

    def forget(self, connection: Connection, attempt_ids: Collection[str]) -> None:
        """Forget failures that count no more."""
        table = cell_failed_builds
        connection.execute(
            table.delete().where(table.c.cell_uuid == self._cell_uuid, table.c.attempt_id.in_(attempt_ids))
        )


def in_steps(count: float) -> float:
    """Return a count as it is told: the nearest, in proportion, of 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8 and so on.

    What is less than 0.5 is 0.
    """
    if count < _LEAST:
        return 0.0
    below = 2.0 ** math.floor(math.log2(count))
    return min((below * step for step in _STEPS), key=lambda told: abs(math.log(told / count)))
