"""One history: a cloud, the requests and faults of its story, and the verdict; to be run in its own process."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.simulation.clients.answers import Broken
from harness.simulation.clients.callers import Callers, create_providers
from harness.simulation.clients.seats import create_seats
from harness.simulation.clients.zones import create_aggregates
from harness.simulation.cloud import TWIN, SimulatedCloud, agent_of, specification
from harness.simulation.judge import Judge
from harness.simulation.machine import network, patches, store
from harness.simulation.machine.kernel import KERNEL, OUTSIDE, Deadlock
from harness.simulation.story import STORE, Fault, Story, forgets
from moorage import errors
from moorage.bus.calling import SENDINGS


@dataclass(frozen=True)
class Outcome:
    """The outcome of a history.

    :param broken: the first broken promise, in words; null if all are kept.
    :param trace: the checksum of all events.
    """

    broken: str | None
    trace: str = ""
    switches: int = 0
    commits: int = 0
    virtual_seconds: float = 0.0
    happened: Sequence[str] = ()
    #: The number of answers by kind of action and answer, and the number of servers by final state.
    counts: Mapping[str, int] = field(default_factory=dict)


class MessageFaults:
    """Decides what happens to messages: each fault of the story affects one call or one answer."""

    def __init__(self) -> None:
        self._armed: list[tuple[Fault, list[int]]] = []
        self.happened: list[str] = []

    def arm(self, fault: Fault) -> None:
        """Let a fault affect the message whose number it names."""
        self._armed.append((fault, [fault.count]))

    def __call__(self, sender: str, topic: str, method: str, answer: bool) -> Sequence[float]:
        """Return the delay in seconds of each copy of a message."""
        copies: tuple[float, ...] = (0.0,)
        for fault, left in list(self._armed):
            if (fault.kind == "lose answer") != answer:
                continue
            left[0] -= 1
            if left[0] <= 0:
                self._armed.remove((fault, left))
                copies = {"double": (0.0, fault.seconds), "delay": (fault.seconds,)}.get(fault.kind, ())
                kind = "answer to " if answer else ""
                self.happened.append(f"{KERNEL.now:8.3f}  {fault.kind}: {kind}{method} on {topic}, sent by {sender}")
        return copies


def start_cloud(seed: str) -> SimulatedCloud:
    """Start a cloud, on which histories run, each in a fork of this process."""
    plan = specification(forgetting=forgets(seed))
    # Not the seed of a history as well, which would draw the ids of this cloud once more.
    seed = f"{seed}/start"
    KERNEL.reset(seed)
    patches.begin(seed)
    SENDINGS.restart()
    network.NETWORK.reset()
    store.FAULTS.reset()
    cloud = SimulatedCloud(plan)
    cloud.start()
    create_providers(cloud)
    create_aggregates(cloud)
    create_seats(cloud.client("placement", timeout=20.0).call)
    while store.is_in_transaction():
        KERNEL.sleep(0.01)
    return cloud


def in_words(fault: BaseException) -> str | None:
    """Return the text of an error that ends a history; null if the error is in the simulation and not in the cloud."""
    if isinstance(fault, Broken | Deadlock):
        return str(fault)
    return f"promise 10: {fault}" if isinstance(fault, TimeoutError | errors.Unavailable) else None


def run_story(story: Story, cloud: SimulatedCloud) -> Outcome:
    """Run a story on a started cloud, and judge it. The process must end afterwards: crashed tasks remain in it."""
    KERNEL.reseed(story.seed)
    patches.begin(story.seed)
    SENDINGS.restart()
    began = KERNEL.now
    run = _Run(story, cloud)
    broken: str | None = None
    try:
        run.run()
    except (Exception, Deadlock) as fault:
        if (broken := in_words(fault)) is None:
            raise
    happened, counts = run.message_faults.happened, dict(run.callers.answers)
    return Outcome(
        broken, KERNEL.trace, KERNEL.switches, run.judge.checks.commits, KERNEL.now - began, happened, counts
    )


class _Run:
    """A run of a story."""

    def __init__(self, story: Story, cloud: SimulatedCloud) -> None:
        self._story = story
        self._cloud = cloud
        self.message_faults = MessageFaults()
        self.callers = Callers(cloud, story)
        self.judge = Judge(cloud, self.callers)
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._is_calm = False

    def run(self) -> None:
        """Run the story.

        :raises Broken: a promise is broken.
        """
        network.NETWORK.message_fault = self.message_faults
        faults = list(self._story.faults)
        for action in self._story.actions:
            while faults and faults[0].after <= action.number:
                self._strike(faults.pop(0))
            KERNEL.sleep(action.gap)
            self.callers.ask(action)
            self.judge.check()
        for fault in faults:
            self._strike(fault)
        KERNEL.sleep(1.0)
        self._calm()
        self.judge.settle()
        self.judge.verdict()

    def _strike(self, fault: Fault) -> None:
        """Inject a fault, now or when it is due."""
        if fault.kind == "crash":
            KERNEL.at_point(fault.who, fault.count, lambda: self._crash(fault))
        elif fault.kind == "stand still":
            KERNEL.at_point(fault.who, fault.count, lambda: self._freeze(fault))
        elif fault.kind == "cut":
            self._cut(fault.who, fault.other, 1)
            self._later(fault.seconds, lambda: self._cut(fault.who, fault.other, -1))
        elif fault.kind == "reshape":
            self._start_anew(fault, f"the hosts of {fault.who} become {self._cloud.reshape(fault.who)}")
        elif fault.kind == "rename":
            self._start_anew(fault, f"{fault.who} is renamed to {self._cloud.rename(fault.who)}")
        elif fault.kind == "twin":
            self._start_twin(fault)
        elif fault.kind == "host":
            self._start_fault_of_host(fault)
        elif fault.kind == "lose commit":
            store.FAULTS.lost_commits[fault.who] = fault.count
        elif fault.kind == "step clock":
            self._log(str(fault))
            patches.wall_offsets[patches.STORE] = patches.wall_offsets.get(patches.STORE, 0.0) + fault.seconds
            store.FAULTS.feed_numbers.set_clock()
        else:
            self.message_faults.arm(fault)

    def _crash(self, fault: Fault) -> None:
        if fault.who not in self._cloud.services or self._is_calm:
            return
        self._log(f"{fault.who} crashes in {KERNEL.current.name}")
        self._cloud.crash(fault.who)
        self._later(fault.seconds, lambda: self._restart(fault.who))

    def _start_anew(self, fault: Fault, why: str) -> None:
        """Restart an agent after a change; for an agent that has crashed, the change applies when it restarts."""
        self._log(why)
        if fault.who in self._cloud.services:
            self._crash(fault)

    def _start_twin(self, fault: Fault) -> None:
        """Start a second process with the name of a service, which ends after a while."""
        self._restart(name := fault.who + TWIN)

        def end() -> None:
            if name in self._cloud.services:
                self._log(f"{name} ends")
                self._cloud.crash(name)

        self._later(fault.seconds, end)

    def _start_fault_of_host(self, fault: Fault) -> None:
        """Give a host a fault for a while, in place of the one that it has."""
        self._log(str(fault))
        if fault.other == "dies":
            self._cloud.let_die(fault.who, fault.seconds)
            return
        if fault.other == "loses guests":
            agent = agent_of(fault.who)
            self._cloud.crash(agent)
            self._cloud.lose_guests(fault.who)
            self._later(fault.seconds, lambda: self._restart(agent))
            return
        faults = self._cloud.host_faults
        faults[fault.who] = present = (fault.other, fault.seconds)

        def end() -> None:
            if faults.get(fault.who) is present:
                self._log(f"{fault.who} has no fault")
                del faults[fault.who]

        self._later(fault.seconds, end)

    def _freeze(self, fault: Fault) -> None:
        self._log(f"{fault.who} stands still in {KERNEL.current.name}")
        KERNEL.freeze(fault.who)
        self._later(fault.seconds, lambda: self._thaw(fault.who))

    def _thaw(self, name: str) -> None:
        self._log(f"{name} goes on")
        KERNEL.thaw(name)

    def _restart(self, name: str) -> None:
        if name not in self._cloud.services:
            self._log(f"{name} is started again")
            self._cloud.restart(name)

    def _cut(self, one: str, other: str, change: int) -> None:
        self._cuts[one, other] += change
        is_cut = self._cuts[one, other] > 0
        self._log(f"{one} and {other} {'are cut off from' if is_cut else 'can reach'} each other")
        if other == STORE:
            (store.FAULTS.cut_off.add if is_cut else store.FAULTS.cut_off.discard)(one)
        else:
            pair = frozenset((one, other))
            (network.NETWORK.cuts.add if is_cut else network.NETWORK.cuts.discard)(pair)

    def _calm(self) -> None:
        """Inject no more faults, and let all processes run."""
        self._is_calm = True
        KERNEL.forget_points()
        for process in KERNEL.frozen:
            KERNEL.thaw(process)
        network.NETWORK.message_fault = lambda *_what: (0.0,)
        network.NETWORK.cuts.clear()
        store.FAULTS.cut_off.clear()
        store.FAULTS.lost_commits.clear()
        self._cloud.host_faults.clear()
        for process in sorted(KERNEL.dead):
            if not process.endswith(TWIN):
                self._restart(process)

    def _later(self, seconds: float, do: Callable[[], Any]) -> None:
        def wait() -> None:
            KERNEL.sleep(seconds)
            if not self._is_calm:
                do()

        KERNEL.start(wait, OUTSIDE, "later")

    def _log(self, line: str) -> None:
        self.message_faults.happened.append(f"{KERNEL.now:8.3f}  {line}")
