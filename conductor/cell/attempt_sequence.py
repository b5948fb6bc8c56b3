"""What a course of attempts is for: a build, a move or an unshelving. One host after the other, whichever it is."""

import logging
from dataclasses import dataclass

from sqlalchemy import Connection

from conductor.cell.payloads import Fate, GivingBack, Releasing, Swapping
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.failed_builds import FailedBuilds
from conductor.cell.records.instances import (
    CellInstance,
    CellRecords,
)
from conductor.cell.records.migrations import SELF_CONFIRMING, MigrationRecord, MigrationRecords
from conductor.engine.steps import BUILD, MOVE, UNSHELVE, Next, Outcome, Superseded
from moorage.model import RequestSpec, Selection
from moorage.model.states import InstanceState, MigrationState

LOG = logging.getLogger(__name__)

#: By the state of an instance, the kind of operation that takes it from one host to the next.
_KINDS: dict[InstanceState, str] = {"building": BUILD, "unshelving": UNSHELVE, "moving": MOVE}

_LONGEST_REASON = 4096


@dataclass(frozen=True, slots=True)
class Course:
    """The hosts that an instance is to be tried on, one after the other."""

    #: Of its operation.
    kind: str
    spec: RequestSpec
    selections: tuple[Selection, ...]
    #: The number of the attempt on the first of them.
    first_number: int
    #: Of a move only.
    migration: MigrationRecord | None = None

    @property
    def migration_uuid(self) -> str | None:
        """The migration that attempts of this course are made for."""
        return None if self.migration is None else self.migration.uuid

    @property
    def is_aborted(self) -> bool:
        """Whether no other host is to be tried."""
        return self.migration is not None and self.migration.is_aborted

    @property
    def fruitless_state(self) -> InstanceState:
        """What an instance is whose build or unshelving has failed everywhere: it holds nothing."""
        return "shelved" if self.kind == UNSHELVE else "error"

    def selection(self, number: int) -> Selection:
        """Return the host of an attempt that may not be on record yet."""
        return self.selections[number - self.first_number]


class Courses:
    """Finds the course that an instance is in, and what follows when it comes to an end.

    Each method is a part of the transaction that it is given; the instance is locked where something is recorded.
    """

    def __init__(self, records: CellRecords, migrations: MigrationRecords) -> None:
        self._records = records
        self._migrations = migrations
        self._failed_builds = FailedBuilds(records.cell_uuid)

    def of(self, connection: Connection, instance: CellInstance | None) -> tuple[CellInstance, Course]:
        """Return an instance with the course that it is in.

        :raises Superseded: it is in none: an order to delete it has ended its operation.
        """
        if instance is None or (kind := self.kind(instance)) is None:
            raise Superseded
        if kind != MOVE:
            return instance, Course(kind, instance.spec, instance.selections, instance.first_number)
        migration = self._migrations.of(connection, instance)
        if migration.state != "moving":
            raise Superseded
        spec, _held = migration.claimed_with
        return instance, Course(MOVE, spec, migration.selections, migration.first_number, migration)

    @staticmethod
    def kind(instance: CellInstance) -> str | None:
        """Return the kind of operation that tries an instance on one host after the other, if it is in a course."""
        return _KINDS.get(instance.state)

    def following(
        self, connection: Connection, instance: CellInstance, failed: int, reason: str, fate: Fate
    ) -> Outcome:
        """Return the step that follows a failed attempt: the next host, or what is done when there is none."""
        _instance, course = self.of(connection, instance)
        attempt = self._records.numbered(connection, instance.uuid, failed)
        if course.kind != MOVE and not attempt.no_other_host:
            # A move may have failed on account of its source; and the host is not to blame for what fails everywhere.
            self._failed_builds.add(connection, attempt.attempt_id, attempt.host)
        candidate = self._records.next_number(connection, instance.uuid)
        reason = reason[:_LONGEST_REASON]
        is_last = course.is_aborted or attempt.no_other_host
        if candidate < course.first_number + len(course.selections) and not is_last:
            return Next("swap", Swapping(failed=failed, candidate=candidate, fate=fate, reason=reason))
        if course.kind == MOVE:
            return Next("give_back", GivingBack(failed=failed, fate=fate, reason=reason))
        return Next("release", Releasing(failed=failed, fate=fate, reason=reason))

    def heading(self, connection: Connection, instance: CellInstance, course: Course, selection: Selection) -> None:
        """Record where an instance is tried now: a moving one is on its source until it has arrived."""
        if course.migration is None:
            self._records.change(connection, instance.uuid, host=selection.service_host)
        else:
            self._migrations.change(connection, course.migration.uuid, destination_host=selection.service_host)

    def arrived(self, connection: Connection, instance: CellInstance, attempt: AttemptRecord) -> str | None:
        """Record that the guest of the current attempt runs; return the migration that is to be confirmed now."""
        _instance, course = self.of(connection, instance)
        self._records.change_attempt(connection, attempt.attempt_id, state="active")
        self._failed_builds.halve(connection, attempt.host)
        if course.migration is None:
            self._records.change(connection, instance.uuid, state="active", reason=None)
            LOG.info("Instance %s is active on host %s", instance.uuid, attempt.host)
            return None
        LOG.info("Instance %s has arrived on host %s", instance.uuid, attempt.host)
        self._records.change(connection, instance.uuid, state="moved", host=attempt.host, reason=None)
        is_confirmed = course.migration.kind in SELF_CONFIRMING
        state: MigrationState = "confirming" if is_confirmed else "moved"
        self._migrations.change(connection, course.migration.uuid, state=state, destination_host=attempt.host)
        return course.migration.uuid if is_confirmed else None
