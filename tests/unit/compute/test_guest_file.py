"""Test the fake driver's file of guests: its content after any history, and the upgrade of an older file in place."""

import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from support.compute.builders import guest_spec, settings
from support.compute.driver_rigs import destroy, order

from compute.driver import GuestOrder, GuestSpec
from compute.fake.behaviour import Behaviour
from compute.fake.driver import FakeDriver
from compute.fake.guest_file import GuestFile
from moorage import errors
from moorage.model import Image

HOST, CAPACITY = "host-0001", 16

# --- Any history ------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The agent's process ends here."""


class KillableDriver(FakeDriver):
    """A driver whose process is killed in the middle of the next spawn or order, once `killed` is set."""

    killed = False

    def _behaviour(self) -> Behaviour:
        if self.killed:
            raise Killed
        return Behaviour()

    def behaviour(self, host: str, guest: GuestSpec) -> Behaviour:
        """End the process if it is to be killed."""
        return self._behaviour()

    def order_behaviour(self, host: str, order: GuestOrder, action: Any) -> Behaviour:
        """End the process if it is to be killed."""
        return self._behaviour()


class History:
    """A driver, and a model of it: the expected state of each guest, and the orders that it was given."""

    def __init__(self, folder: Path) -> None:
        self.conf = settings(folder)
        self.asked = [guest_spec(vcpus=3 + number) for number in range(5)]
        self.states: dict[int, str] = {}
        self.orders: dict[int, list[tuple[str, GuestOrder]]] = {}
        #: The latest order of each guest that was carried out.
        self.done: dict[int, GuestOrder] = {}
        self.driver = self.begin()

    def begin(self) -> KillableDriver:
        driver = KillableDriver(self.conf, "agent1", "cell1")
        driver.start()
        return driver

    def restart(self) -> None:
        self.driver.close()
        self.driver = self.begin()

    def kill(self, act: Callable[[], object]) -> None:
        """Call ``act``, kill the process before it ends, and restart it."""
        self.driver.killed = True
        with pytest.raises(Killed):
            act()
        self.restart()

    def held(self) -> int:
        return sum(self.asked[number].resources["VCPU"] for number, state in self.states.items() if state != "gone")

    def spawn(self, number: int, *, killed: bool) -> None:
        asked, state = self.asked[number], self.states.get(number)
        fits = self.held() + asked.resources["VCPU"] <= CAPACITY
        if state == "gone" or (state is None and not fits):
            with pytest.raises(errors.BuildFailed):
                self.driver.spawn(HOST, asked)
        elif state in {"runs", "stopped"}:
            self.driver.spawn(HOST, asked)
        elif killed:
            self.kill(lambda: self.driver.spawn(HOST, asked))
            self.states[number] = "half made"
        else:
            self.driver.spawn(HOST, asked)
            self.states[number] = "runs"

    def destroy(self, number: int) -> None:
        destroy(self.driver, HOST, self.asked[number])
        self.states[number] = "gone"

    def give(self, number: int, action: str, repeated: GuestOrder | None, *, killed: bool) -> None:
        """Give an order, a new one or one that was given before."""
        given = repeated or order(self.asked[number])
        known = self.orders.setdefault(number, [])
        late = repeated is not None and (not known or known[-1][1] != given)
        if self.states.get(number) not in {"runs", "stopped"} or late:
            with pytest.raises(errors.InvalidState):
                self.act(action, given)
            return
        if repeated is None:
            known.append((action, given))
        if self.done.get(number) == given:
            self.act(action, given)
            return
        if killed:
            self.kill(lambda: self.act(action, given))
            self.states[number] = "stopped" if action == "rebuild" else self.states[number]
            return
        self.act(action, given)
        self.done[number] = given
        self.states[number] = "stopped" if action == "stop" else "runs"

    def give_again(self, number: int, which: int, *, killed: bool) -> None:
        known = self.orders.get(number)
        if known:
            action, given = known[which % len(known)]
            self.give(number, action, given, killed=killed)

    def act(self, action: str, given: GuestOrder) -> None:
        if action == "rebuild":
            self.driver.rebuild_guest(HOST, given, Image(id="another"))
        else:
            {"stop": self.driver.stop_guest, "start": self.driver.start_guest}[action](HOST, given)

    def verify(self) -> None:
        def attempts(*states: str) -> set[str]:
            return {self.asked[number].attempt_id for number, state in self.states.items() if state in states}

        found = self.driver.guests(HOST)
        assert {guest.attempt_id for guest in found} == attempts("runs", "stopped", "half made")
        assert set(self.driver.stopped(HOST)) == attempts("stopped")
        assert set(self.driver.unfinished(HOST)) == attempts("half made")
        assert sum(guest.resources["VCPU"] for guest in found) == self.held() <= CAPACITY


NUMBERS = st.integers(0, 4)
STEPS = st.one_of(
    st.tuples(st.just("spawn"), NUMBERS, st.booleans()),
    st.tuples(st.sampled_from(["stop", "start", "rebuild"]), NUMBERS, st.booleans()),
    st.tuples(st.just("again"), NUMBERS, st.booleans(), st.integers(0, 3)),
    st.tuples(st.just("destroy"), NUMBERS),
    st.tuples(st.just("restart")),
)


@examples(max_examples=60, deadline=None)
@given(st.lists(STEPS, min_size=5, max_size=30))
def test_in_any_history_destroyed_guests_stay_destroyed_capacity_holds_and_restarts_lose_nothing(
    steps: Sequence[Any],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder))
        try:
            for name, *words in steps:
                if name == "spawn":
                    history.spawn(words[0], killed=words[1])
                elif name == "destroy":
                    history.destroy(words[0])
                elif name == "restart":
                    history.restart()
                elif name == "again":
                    history.give_again(words[0], words[2], killed=words[1])
                else:
                    history.give(words[0], name, None, killed=words[1])
                history.verify()
            history.restart()
            history.verify()
        finally:
            history.driver.close()


def test_a_rebuilt_guest_names_the_order_of_its_last_rebuild(tmp_path: Path) -> None:
    driver = FakeDriver(settings(tmp_path), "agent1", "cell1")
    driver.start()
    asked = guest_spec()
    driver.spawn(HOST, asked)
    orders = [order(asked), order(asked)]
    for rebuild in orders:
        driver.rebuild_guest(HOST, rebuild, Image())
    driver.close()

    file = GuestFile(tmp_path / "guests.sqlite")
    file.open()
    assert file.rebuilt(HOST) == {asked.attempt_id: orders[-1].order_id}
    assert file.rebuilt("host-0002") == {}
    file.close()


# --- Older files ------------------------------------------------------------------------------------------------------

_FIRST_TABLES = """
CREATE TABLE guests (
    host TEXT NOT NULL, attempt_id TEXT NOT NULL, instance_uuid TEXT NOT NULL, claim_id TEXT NOT NULL,
    running INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (host, attempt_id)
) WITHOUT ROWID;
CREATE TABLE amounts (
    host TEXT NOT NULL, attempt_id TEXT NOT NULL, resource_class TEXT NOT NULL, amount INTEGER NOT NULL,
    PRIMARY KEY (host, attempt_id, resource_class)
) WITHOUT ROWID;
CREATE TABLE destroyed (host TEXT NOT NULL, attempt_id TEXT NOT NULL, PRIMARY KEY (host, attempt_id)) WITHOUT ROWID;
"""


def older_file(path: Path, *, running: GuestSpec, half_made: GuestSpec, gone: GuestSpec) -> None:
    """Create a file with the tables of the fake driver's first version."""
    connection = sqlite3.connect(path)
    connection.executescript(_FIRST_TABLES)
    for guest, runs in ((running, 1), (half_made, 0)):
        connection.execute(
            "INSERT INTO guests VALUES (?, ?, ?, ?, ?)",
            (HOST, guest.attempt_id, guest.instance_uuid, guest.claim_id, runs),
        )
        rows = [(HOST, guest.attempt_id, name, amount) for name, amount in guest.resources.items()]
        connection.executemany("INSERT INTO amounts VALUES (?, ?, ?, ?)", rows)
    connection.execute("INSERT INTO destroyed VALUES (?, ?)", (HOST, gone.attempt_id))
    connection.commit()
    connection.close()


def test_an_older_file_is_upgraded_in_place_without_loss(tmp_path: Path) -> None:
    running, half_made, gone = guest_spec(), guest_spec(), guest_spec()
    older_file(tmp_path / "guests.sqlite", running=running, half_made=half_made, gone=gone)

    for _ in range(2):
        driver = FakeDriver(settings(tmp_path), "agent1", "cell1")
        driver.start()
        found = {guest.attempt_id: guest.resources for guest in driver.guests(HOST)}
        assert found == {running.attempt_id: running.resources, half_made.attempt_id: half_made.resources}
        assert list(driver.unfinished(HOST)) == [half_made.attempt_id]
        with pytest.raises(errors.BuildFailed):
            driver.spawn(HOST, gone)
        driver.stop_guest(HOST, order(running))
        assert list(driver.stopped(HOST)) == [running.attempt_id]
        driver.start_guest(HOST, order(running))
        driver.close()


def test_an_older_file_is_upgraded_once_when_many_open_it(tmp_path: Path) -> None:
    running, half_made = guest_spec(), guest_spec()
    older_file(tmp_path / "guests.sqlite", running=running, half_made=half_made, gone=guest_spec())
    files = [GuestFile(tmp_path / "guests.sqlite") for _ in range(8)]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(GuestFile.open, files))

    for file in files:
        assert {guest.attempt_id for guest in file.guests()} == {running.attempt_id, half_made.attempt_id}
        assert file.unfinished(HOST) == [half_made.attempt_id]
        file.close()


def test_an_older_agent_counts_a_stopped_guest_as_finished(tmp_path: Path) -> None:
    asked = guest_spec()
    driver = FakeDriver(settings(tmp_path), "agent1", "cell1")
    driver.start()
    driver.spawn(HOST, asked)
    driver.stop_guest(HOST, order(asked))
    driver.close()

    connection = sqlite3.connect(tmp_path / "guests.sqlite")
    unfinished = connection.execute("SELECT attempt_id FROM guests WHERE host = ? AND NOT running", (HOST,)).fetchall()
    connection.close()

    assert unfinished == []


def test_a_file_that_cannot_be_opened_is_named_with_its_folder_and_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("missing") / "guests.sqlite"
    with pytest.raises(errors.ConfigurationError) as refused:
        GuestFile(file).open()
    assert f"{tmp_path / file} ([fake_driver] state_file): unable to open" in str(refused.value)
