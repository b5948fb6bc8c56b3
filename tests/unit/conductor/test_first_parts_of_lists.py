"""Test that a list command with `--limit` fetches no more parts of a long list than it shows."""

import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from cliff.lister import Lister

from conductor.commands.instance import InstanceList
from conductor.commands.migration import MigrationList
from moorage import errors, ids
from moorage.cli import lists
from moorage.cli.command import ListCommand
from moorage.cli.shell import Shell
from moorage.messages import ListClaims, ListInstances, ListMigrations, ShowInstance, ShowMigration
from moorage.model import Flavor, Instance, Migration

MANY = 10_000


def uuid(number: int) -> str:
    return ids.derived("first parts", number)


def instance(number: int, *, is_numbered: bool = True) -> Instance:
    return Instance(
        uuid=uuid(number),
        project_id="p",
        user_id="u",
        flavor=Flavor(vcpus=1, memory_mb=1, root_gb=1),
        # A page may have instances that their cells have just deleted.
        state="deleted" if number % 10 == 0 else "active",
        host=f"host{number % 100}",
        number=number if is_numbered else 0,
    )


def migration(number: int) -> Migration:
    return Migration(
        uuid=uuid(number), instance_uuid=uuid(0), kind="cold-migration", state="moved", source_host="h", number=number
    )


class FakeConductor:
    """A super conductor with many instances and migrations; it counts the entries of its lists."""

    def __init__(self) -> None:
        self.listed = 0
        self.is_former = False

    def call(self, message: Any) -> Any:
        match message:
            case ListInstances() | ListMigrations():
                first, last = message.after or 0, MANY
                if message.limit is not None and not self.is_former:
                    last = min(MANY, first + message.limit)
                if self.is_former:
                    first = 0
                self.listed += last - first
                return [self._entry(message, number) for number in range(first + 1, last + 1)]
            case ShowInstance():
                return instance(self._number(message.instance_uuid), is_numbered=not self.is_former)
            case ShowMigration():
                return migration(self._number(message.uuid))

    def _entry(self, message: Any, number: int) -> Instance | Migration:
        if isinstance(message, ListMigrations):
            return migration(number)
        return instance(number, is_numbered=not self.is_former)

    def _number(self, wanted: str) -> int:
        for number in range(1, MANY + 1):
            if uuid(number) == wanted:
                return number
        raise errors.InstanceNotFound(name=wanted)


@pytest.fixture
def conductor(monkeypatch: pytest.MonkeyPatch) -> FakeConductor:
    fake = FakeConductor()
    monkeypatch.setattr(ListCommand, "client", lambda _self, _topic: fake)
    return fake


def listed(capsys: pytest.CaptureFixture[str], kind: type[Lister], *words: str) -> Sequence[str]:
    command = kind(Shell(), None, "listed")
    parsed = command.get_parser("moorage listed").parse_args([*words, "-f", "value", "-c", "uuid"])
    command.run(parsed)
    return capsys.readouterr().out.split()


@pytest.mark.parametrize("kind", [InstanceList, MigrationList])
def test_the_first_rows_need_one_part(
    capsys: pytest.CaptureFixture[str], conductor: FakeConductor, kind: type[Lister]
) -> None:
    assert listed(capsys, kind, "--limit", "5") == [uuid(number) for number in range(1, 6)]
    assert conductor.listed <= 1000


@pytest.mark.parametrize("kind", [InstanceList, MigrationList])
def test_the_rows_after_a_marker_need_one_part(
    capsys: pytest.CaptureFixture[str], conductor: FakeConductor, kind: type[Lister]
) -> None:
    found = listed(capsys, kind, "--marker", uuid(9_001), "--limit", "5")
    assert found == [uuid(number) for number in range(9_002, 9_007)]
    assert conductor.listed <= 1000


def test_parts_are_fetched_until_enough_rows_are_wanted(
    capsys: pytest.CaptureFixture[str], conductor: FakeConductor
) -> None:
    found = listed(capsys, InstanceList, "--host", "host7", "--limit", "15")
    assert found == [uuid(number) for number in range(7, 1_500, 100)]
    assert conductor.listed == 2_000


def test_a_sorted_list_needs_all_rows(capsys: pytest.CaptureFixture[str], conductor: FakeConductor) -> None:
    conductor_first = listed(capsys, InstanceList, "--sort", "host:desc", "--limit", "1")
    assert conductor_first == [uuid(99)]
    assert conductor.listed == MANY
    marked = listed(capsys, InstanceList, "--sort", "host:desc", "--marker", uuid(99), "--limit", "1")
    assert marked == [uuid(199)]


def test_a_marker_outside_of_the_list_is_refused(capsys: pytest.CaptureFixture[str], conductor: FakeConductor) -> None:
    # Another host's instance, an instance that does not exist, and no uuid.
    for marker in (uuid(8), uuid(MANY + 1), "web"):
        with pytest.raises(errors.InvalidRequest, match="is not in the list"):
            listed(capsys, InstanceList, "--host", "host7", "--marker", marker, "--limit", "1")


class FakePlacement:
    """A placement role with many claims, which counts the claims that are in memory."""

    def __init__(self) -> None:
        self.kept: weakref.WeakSet[KeptClaim] = weakref.WeakSet()
        self.most_kept = 0

    def call(self, message: Any) -> Any:
        assert isinstance(message, ListClaims)
        assert message.limit is not None
        first = int(message.after or "0", 16)
        part = [KeptClaim(number) for number in range(first + 1, min(MANY, first + message.limit) + 1)]
        self.kept.update(part)
        self.most_kept = max(self.most_kept, len(self.kept))
        return part


class KeptClaim:
    """A claim that can be counted; those with a greater number are older."""

    def __init__(self, number: int) -> None:
        self.consumer_uuid, self.age = f"{number:08x}", float(number)


def test_the_oldest_claims_are_found_without_keeping_all_of_them() -> None:
    placement = FakePlacement()
    found = lists.claims(placement, ListClaims(), at_once=500, most=3)
    assert [claim.age for claim in found] == [MANY, MANY - 1, MANY - 2]
    # A part that is read, and the one before it.
    assert placement.most_kept <= 1_010


def test_a_conductor_of_a_former_release_is_read_whole(
    capsys: pytest.CaptureFixture[str], conductor: FakeConductor
) -> None:
    conductor.is_former = True
    assert listed(capsys, InstanceList, "--marker", uuid(9_001), "--limit", "2") == [uuid(9_002), uuid(9_003)]
