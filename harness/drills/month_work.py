"""The work of a small cloud's month: users' servers, operators' maintenance, dead hosts, and changes of policy."""

import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from msgspec import structs

from harness.bench.requests import SPEC
from harness.drills.cloud import STANDBY_AGENT, STANDBY_HOSTS, DrillCloud
from harness.drills.month import HOURS, MEAN_BATCH, MEAN_LIFETIME, MonthDraws
from harness.drills.orders import Server
from harness.drills.workload import CALL_SECONDS, WorkingClients
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.bus.bus import Client
from moorage.cli import lists
from moorage.messages import CreateServerGroup, DeleteServerGroup, ListHosts, ListInstances, SetHost, ShowPolicy
from moorage.model import Instance, RequestSpec, ServerGroup

#: The mean number of living servers: about ten on each of ten hosts, between the 4 and the 27 of real clouds.
_ALIVE = 110
#: The maximum builds in a second on the machine of a drill: a shorter month has fewer servers.
_BUILDS_PER_SECOND = 3.0
#: The share of servers that are changed once in their life; all kinds of change are equally frequent. Arbitrary.
_CHANGED = 0.3
_CHANGES = (Server.migrate, Server.resize, Server.live_migrate, Server.rebuild, Server.shelve)
#: The share of batches of two to four servers that form an anti-affinity group: the preset "rule-heavy".
_GROUPED = 0.3
#: Hours between two listings, two maintenances, two dead agents and two changes of policy, and until the retry of a
#: change that met a dead host. Arbitrary: each happens in each tenth of the month.
_LISTS, _MAINTENANCE, _DEAD, _POLICY, _AGAIN = 4.0, 48.0, 72.0, 24.0, 4.0

#: Seconds that an operator or a user waits for something. Arbitrary: longer than any time-out of the cloud.
_PATIENCE = 60.0

Job = Callable[[], None]


@dataclass
class _LivingGroup:
    """A server group of a batch, and the number of its servers that still exist."""

    group: ServerGroup
    #: Whether its user created it, and also deletes it; otherwise the first claim that names it creates it.
    is_created: bool
    left: int


@dataclass(eq=False)
class LivingServer:
    """A server that was built; an order about it requires its lock."""

    server: Server
    group: _LivingGroup | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_deleted: bool = False

    def active_on(self) -> str | None:
        """Return the host on which the server is active now, if it is active; the caller holds the lock."""
        if self.is_deleted:
            return None  # its record may already be removed
        instance = self.server.show()
        return instance.host if instance.state == "active" else None


class MonthWork(WorkingClients):
    """Clients that carry out jobs when they are due, by a clock on which a month lasts for ``seconds``."""

    def __init__(self, cloud: DrillCloud, clients: int, seed: int, seconds: float) -> None:
        super().__init__(cloud, clients)
        self._cells = cloud
        self._hour = seconds / HOURS
        self._draws, self._operators = MonthDraws(seed), MonthDraws(f"operators {seed}")
        self._orders = cloud.client("conductor", CALL_SECONDS)
        self._scheduler, self._placement = (cloud.client(topic, CALL_SECONDS) for topic in ("scheduler", "placement"))
        self._agenda: list[tuple[float, int, Job]] = []
        self._numbers, self._uuids = itertools.count(), itertools.count()
        self._due = threading.Condition(threading.RLock())
        self._living: dict[str, LivingServer] = {}
        self._is_host_dead = False
        self._seed = seed
        #: Builds in an hour of the cloud.
        builds = min(_ALIVE / MEAN_LIFETIME, _BUILDS_PER_SECOND * self._hour)
        #: Hours between two batches.
        self._gap = MEAN_BATCH / builds
        self._alive_at_first = round(builds * MEAN_LIFETIME)

    def __enter__(self) -> Self:
        super().__enter__()
        self._fill()
        self._at(0.0, self._arrive)
        for first, gap, work in (
            (_LISTS, _LISTS, self._list),
            (_MAINTENANCE / 2, _MAINTENANCE, self._maintain),
            (_DEAD / 3, _DEAD, self._lose_hosts),
            (_POLICY / 2, _POLICY, self._change_policy),
        ):
            self._at(first, partial(self._repeat, gap, work))
        return self

    def __exit__(self, *fault: object) -> None:
        """Let the clients finish, then delete all servers."""
        with self._due:
            self._ended.set()
            self._due.notify_all()
        super().__exit__(*fault)
        with ThreadPoolExecutor(len(self._threads)) as threads:
            list(threads.map(self._guarded, [partial(self._end, living) for living in list(self._living.values())]))

    @property
    def alive(self) -> int:
        """The number of existing servers."""
        return len(self._living)

    def _fill(self) -> None:
        """Build the servers with which the month begins, and wait for them."""
        left = threading.Semaphore(0)

        def build(spec: RequestSpec, lifetime: float) -> None:
            try:
                self._begin(spec, None, lifetime, None)
            finally:
                left.release()

        for _ in range(self._alive_at_first):
            self._at(0.0, partial(build, self._spec(), self._draws.rest_of_lifetime()))
        for _ in range(self._alive_at_first):
            while not left.acquire(timeout=1.0):
                if self.findings:
                    return
        self.take_seconds()

    # --- The agenda --------------------------------------------------------------------------------------------------

    def _at(self, hours: float, job: Job) -> None:
        with self._due:
            heapq.heappush(self._agenda, (time.monotonic() + hours * self._hour, next(self._numbers), job))
            self._due.notify()

    def _work(self, client: Client, number: int) -> None:  # noqa: ARG002
        while (job := self._next()) is not None:
            job()

    def _next(self) -> Job | None:
        """Wait for the next job that is due, and return it; return None at the end."""
        with self._due:
            while not self._ended.is_set():
                wait = self._agenda[0][0] - time.monotonic() if self._agenda else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._agenda)[2]
                self._due.wait(wait)
        return None

    def _repeat(self, gap: float, work: Job) -> None:
        """Do the work, and again after a pause: operators do one thing of a kind at a time."""
        work()
        with self._due:
            pause = self._operators.pause(gap)
        self._at(pause, partial(self._repeat, gap, work))

    # --- Users -------------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        """Order a batch of servers, and plan the end of each and perhaps a change before it."""
        draws = self._draws
        with self._due:
            spec = self._spec()
            # The next batch comes independently of how long this one takes.
            self._at(draws.pause(self._gap), self._arrive)
            servers, group = draws.batch(), None
            if 2 <= servers <= 4 and draws.chance.random() < _GROUPED:
                rule = ServerGroup(
                    uuid=ids.derived("month", self._seed, "group", next(self._uuids)), policy="anti-affinity"
                )
                group = _LivingGroup(rule, draws.chance.random() < 0.5, servers)
            lives = [(draws.lifetime(), draws.chance.random() < _CHANGED) for _ in range(servers)]
            changes = [draws.chance.choice(_CHANGES) if is_changed else None for _, is_changed in lives]
        if group and group.is_created:
            name = f"group-{group.group.uuid}"
            create = CreateServerGroup(request_id=ids.fresh(), group=group.group, name=name, project_id="p")
            self._placement.call(create)
        if group:
            spec = structs.replace(spec, server_group=group.group)
        for (lifetime, _), change in zip(lives, changes, strict=True):
            self._at(0.0, partial(self._begin, spec, group, lifetime, change))

    def _spec(self) -> RequestSpec:
        return structs.replace(SPEC, flavor=self._draws.flavor())

    def _begin(
        self, spec: RequestSpec, group: _LivingGroup | None, lifetime: float, change: Callable[[Server], None] | None
    ) -> None:
        server = Server(self, self._orders, ids.derived("month", self._seed, "server", next(self._uuids)), spec)
        living = self._living[server.uuid] = LivingServer(server, group)
        with living.lock:
            instance = server.build()
        if instance.state == "error":
            self._end(living)
            return
        if change is not None:
            self._at(lifetime / 2, partial(self._change, living, change))
        self._at(lifetime, partial(self._end, living))

    def _change(self, living: LivingServer, change: Callable[[Server], None]) -> None:
        with living.lock:
            if living.is_deleted:
                return
            if not self._is_host_dead:
                change(living.server)
                return
        self._at(_AGAIN, partial(self._change, living, change))

    def _end(self, living: LivingServer) -> None:
        with living.lock:
            living.is_deleted = True
            living.server.delete()
            self._living.pop(living.server.uuid)
        if (group := living.group) is None:
            return
        with self._due:
            group.left -= 1
        if group.is_created and group.left == 0:
            self._delete_group(group)

    def _delete_group(self, group: _LivingGroup) -> None:
        def delete() -> bool:
            try:
                self._placement.call(DeleteServerGroup(request_id=ids.fresh(), uuid=group.group.uuid))
            except errors.InvalidState:
                return False  # a dead host's share of a member's allocations is released later
            return True

        wait_until(delete, "a server group to have no members", _PATIENCE, interval=0.1, longest=1.0)
        self.count("deleted groups")

    # --- Operators ---------------------------------------------------------------------------------------------------

    def _list(self) -> None:
        self._timed("list", self._instances)
        self._timed("list-hosts", lambda: lists.hosts(self._scheduler, ListHosts()))

    def _timed(self, kind: str, work: Callable[[], object]) -> None:
        began = time.monotonic()
        work()
        self.ended_in(kind, time.monotonic() - began)

    def _instances(self) -> list[Instance]:
        return lists.instances(self._orders, ListInstances())

    def _maintain(self) -> None:
        """Live-migrate the servers of a host away, one by one, and back after its maintenance."""
        names = sorted(host.service_host for host in lists.hosts(self._scheduler, ListHosts()))
        host = self._operators.chance.choice([name for name in names if not name.startswith(STANDBY_HOSTS)])
        self._set_host(host, disabled=True, disabled_reason="new disks")
        moved = [living for living in self._on({host}) if self._migrate_live(living, host, None)]
        self._set_host(host, disabled=False)
        for living in moved:
            self._migrate_live(living, None, host)
        self.count("maintenances")

    def _migrate_live(self, living: LivingServer, source: str | None, host: str | None) -> bool:
        """Live-migrate a server if it is active and on the source; return whether the migration was ordered."""
        with living.lock:
            now_on = living.active_on()
            if self._is_host_dead or now_on in (None, host) or source not in (None, now_on):
                return False
            living.server.live_migrate(host)
            return True

    def _lose_hosts(self) -> None:
        """Kill an agent with all its hosts, evacuate their servers, and bring the hosts back."""
        if self._is_host_dead:
            return  # the previous failure is not over
        hosts = [h.service_host for h in lists.hosts(self._scheduler, ListHosts()) if h.agent == STANDBY_AGENT]
        # No order is under way at this moment: other drills test orders that meet a failing host.
        with contextlib.ExitStack() as held:
            for living in list(self._living.values()):
                held.enter_context(living.lock)
            self._is_host_dead = True
            self._cells.kill(STANDBY_AGENT)
            for host in hosts:
                self._set_host(host, forced_down=True)
        try:
            for living in self._on(hosts):
                with living.lock:
                    if living.active_on() in hosts:
                        living.server.evacuate()
        finally:
            self._cells.start_role(STANDBY_AGENT)
        for host in hosts:
            self._set_host(host, forced_down=False)
        self._cells.wait_for_hosts(len(lists.hosts(self._scheduler, ListHosts())))
        self._is_host_dead = False
        self.count("dead hosts", len(hosts))

    def _on(self, hosts: Collection[str]) -> list[LivingServer]:
        found = [self._living.get(instance.uuid) for instance in self._instances() if instance.host in hosts]
        return [living for living in found if living is not None]

    def _set_host(self, host: str, **options: bool | str) -> None:
        self._scheduler.call(SetHost(request_id=ids.fresh(), service_host=host, **options))  # type: ignore[arg-type]

    def _change_policy(self) -> None:
        """Let the schedulers pick at random among another number of best hosts, and wait until both do so."""
        among = self._operators.chance.choice((2, 3, 4, 5))
        schedulers = [self._cloud.client("scheduler", CALL_SECONDS, f"scheduler{number}") for number in (1, 2)]

        def is_taken() -> bool:
            return all(scheduler.call(ShowPolicy()).host_subset_size == among for scheduler in schedulers)

        def change() -> None:
            self._cells.set_policy(host_subset_size=among)
            wait_until(is_taken, "the new policy", _PATIENCE, interval=0.05)

        self._timed("policy", change)
        self.count("policies")
