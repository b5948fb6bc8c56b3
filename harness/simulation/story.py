"""The story of a history: the requests of callers and the faults, drawn from a seed, and described in words.

A story is data, so that it can be shrunk: leaving out a part changes no other part.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

SERVERS = 8
HOSTS_OF_A_CELL = 3
CELLS = ("cell1", "cell2")
ALL_HOSTS = tuple(f"{cell}-host-{number + 1:04d}" for cell in CELLS for number in range(HOSTS_OF_A_CELL))
#: The number of histories of a series that start from one cloud.
HISTORIES_OF_A_START = 10
#: The share of clouds that keep nothing longer than they must, and the factor of the time between their actions.
_FORGETTING, _SLOWLY = 0.02, 25.0

#: The actions of callers, and their relative frequencies.
_ACTIONS = {
    "build": 26,
    "delete": 12,
    "migrate": 8,
    "resize": 6,
    "confirm": 7,
    "revert": 6,
    "live-migrate": 6,
    "abort": 2,
    "evacuate": 5,
    "shelve": 4,
    "unshelve": 4,
    "rebuild": 3,
    "attach": 7,
    "detach": 4,
    "force down": 3,
    "force up": 4,
    "claim": 5,
    "write": 5,
    "write beside": 3,
    "contradict": 1,
    "repeat": 6,
    "disable": 2,
    "enable": 2,
    "delete host": 2,
    "reserve": 3,
    "set ratio": 3,
    "delete group": 1,
    "add to aggregate": 3,
    "remove from aggregate": 2,
    "heal": 1,
    "divide seats": 3,
    "move seats": 3,
}
#: The faults, and their relative frequencies.
_FAULTS = {
    "crash": 6,
    "stand still": 3,
    "cut": 4,
    "lose": 4,
    "double": 4,
    "delay": 4,
    "lose answer": 4,
    "lose commit": 3,
    "step clock": 1,
    "reshape": 3,
    "rename": 1,
    "twin": 1,
}
#: The faults of a host, each with its description.
_HOST_FAULTS = {
    "dies": "is dead",
    "fails": "carries out nothing",
    "hangs": "ends no spawn and no rebuild",
    "is late": "cannot be interrupted, and takes that long for everything,",
    "loses guests": "loses its guests, and its agent is down",
    "raises": "raises an unexpected error at everything",
    "refuses": "refuses every guest",
}

_SCHEDULERS = ("scheduler1", "scheduler2")
_SUPER_CONDUCTORS = ("conductor1", "conductor2")
#: The first cell has two, which take over from each other; the work of the second cell waits for its only one.
_CELL_CONDUCTORS = ("conductor1-cell1", "conductor2-cell1", "conductor1-cell2")
_CONDUCTORS = (*_SUPER_CONDUCTORS, *_CELL_CONDUCTORS)
_WITH_STORE = (*_SCHEDULERS, *_CONDUCTORS)
#: In the order of their starts.
_AGENTS = tuple(f"compute-{cell}" for cell in CELLS)
PROCESSES = (*_WITH_STORE, *_AGENTS)
STORE = "store"
_TALKING = (
    *((one, other) for one in _SUPER_CONDUCTORS for other in (*_SCHEDULERS, *_CELL_CONDUCTORS)),
    *((one, f"compute-{one.partition('-')[2]}") for one in _CELL_CONDUCTORS),
    *((one, other) for one in _CELL_CONDUCTORS for other in _SCHEDULERS),
    *((one, STORE) for one in _WITH_STORE),
)


@dataclass(frozen=True, slots=True)
class Action:
    """One request of a caller.

    :param number: the number in the story as it was drawn; it stays the same when other actions are left out.
    :param server: the place of the server in question.
    :param choice: determines all other choices: a host, a size, an earlier request.
    :param gap: the seconds since the previous action.
    """

    number: int
    kind: str
    server: int
    choice: int
    gap: float

    def __str__(self) -> str:
        return f"{self.kind}: server {self.server}, choice {self.choice}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    :param after: the number of the action with which it begins.
    :param who: the process or host; for a cut, one of the two.
    :param other: for a cut, the other process; for the fault of a host, its kind.
    :param count: for a crash or a pause, the number of the process's switching points before it; for a message or a
        commit of the process, which one from then on.
    :param seconds: the duration of the fault, the delay of a message, or the error of the clock.
    """

    after: int
    kind: str
    who: str = ""
    other: str = ""
    count: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        words = {
            "crash": f"{self.who} crashes after {self.count} more steps, for {self.seconds:.1f} s",
            "stand still": f"{self.who} stands still after {self.count} more steps, for {self.seconds:.1f} s",
            "cut": f"{self.who} and {self.other} cannot reach each other for {self.seconds:.1f} s",
            "lose": f"the {_nth(self.count)} call from then on is lost",
            "double": f"the {_nth(self.count)} call from then on arrives twice, {self.seconds:.1f} s apart",
            "delay": f"the {_nth(self.count)} call from then on is {self.seconds:.1f} s late",
            "lose answer": f"the {_nth(self.count)} answer from then on is lost",
            "lose commit": f"{self.who} gets no answer to its {_nth(self.count)} commit from then on",
            "step clock": f"the clock of the databases is stepped by {self.seconds:+.0f} s",
            "reshape": f"{self.who} is started again with its hosts flat or nested, after {self.seconds:.1f} s",
            "twin": f"a second process runs as {self.who} for {self.seconds:.1f} s",
            "rename": f"{self.who} is started again under another name, after {self.seconds:.1f} s",
            "host": f"{self.who} {_HOST_FAULTS.get(self.other)} for {self.seconds:.1f} s",
        }
        return words[self.kind]


@dataclass(frozen=True)
class Story:
    """All actions and faults of one history, and the seed of everything else."""

    seed: str
    actions: Sequence[Action]
    faults: Sequence[Fault]

    @property
    def start(self) -> str:
        """The seed of the cloud's start: ``seed/30`` to ``seed/39`` start from the same cloud."""
        return _start(self.seed)

    def without(self, actions: Sequence[Action] = (), faults: Sequence[Fault] = ()) -> "Story":
        """Return the story without these parts."""
        left_out: set[Action | Fault] = {*actions, *faults}
        return replace(
            self,
            actions=[one for one in self.actions if one not in left_out],
            faults=[one for one in self.faults if one not in left_out],
        )

    def told(self) -> list[str]:
        """Return the description of the story, one line for each part."""
        lines = [f"seed {self.seed}"]
        last = -1
        for action in self.actions:
            lines += [f"  beside it, {fault}" for fault in self.faults if last < fault.after <= action.number]
            lines.append(f"{action.number}. {action}, after {action.gap:.1f} s")
            last = action.number
        return lines + [f"  in the end, {fault}" for fault in self.faults if fault.after > last]


def forgets(start: str) -> bool:
    """Return whether a cloud that starts by this seed keeps nothing longer than it must."""
    return random.Random(f"{start}/pace").random() < _FORGETTING


def _start(seed: str) -> str:
    series, slash, number = seed.rpartition("/")
    return f"{series}/{int(number) // HISTORIES_OF_A_START}" if slash and number.isdecimal() else seed


def draw(seed: str, operations: int = 50) -> Story:
    """Return the story that a seed determines."""
    chance = random.Random(f"{seed}/story")
    slowly = _SLOWLY if (is_slow := forgets(_start(seed))) else 1.0
    actions = [
        Action(
            number,
            # At first there are no servers, so only builds are possible.
            "build" if number < SERVERS // 2 else chance.choices([*_ACTIONS], [*_ACTIONS.values()])[0],
            number if number < SERVERS // 2 else chance.randrange(SERVERS),
            chance.randrange(1 << 16),
            slowly * chance.choice((0.0, 0.0, chance.uniform(0.0, 0.3), chance.uniform(0.0, 2.0))),
        )
        for number in range(operations)
    ]
    faults = [_fault(chance, operations) for _ in range(chance.choice((0, 1, 2, 4, 8, 12)))]
    # From a generator of their own, because they are newer.
    chance = random.Random(f"{seed}/hosts")
    faults += [_fault_of_a_host(chance, operations) for _ in range(chance.choice((0, 0, 1, 3)))]
    if is_slow:
        # A clock that is set forward by more than the retention would let the cloud forget what is still needed.
        faults = [fault for fault in faults if fault.kind != "step clock"]
    return Story(seed, actions, sorted(faults, key=lambda fault: fault.after))


def _fault(chance: random.Random, operations: int) -> Fault:
    [kind] = chance.choices([*_FAULTS], [*_FAULTS.values()])
    after = chance.randrange(operations)
    if kind in ("crash", "stand still"):
        # Most faults come in the middle of work that has just begun.
        points = int(2 ** chance.uniform(0.0, 11.0))
        # The leases of a process that is paused for long are taken over.
        longest = 10.0 if kind == "crash" else 90.0
        return Fault(after, kind, chance.choice(PROCESSES), "", points, chance.uniform(0.0, longest))
    if kind == "cut":
        return Fault(after, kind, *chance.choice(_TALKING), 0, chance.uniform(0.5, 40.0))
    if kind == "step clock":
        return Fault(after, kind, seconds=float(chance.choice((-600, -40, -5, 5, 40, 600))))
    if kind in ("reshape", "rename"):
        return Fault(after, kind, chance.choice(_AGENTS), seconds=chance.uniform(0.0, 5.0))
    if kind == "twin":
        return Fault(after, kind, chance.choice(_CONDUCTORS), seconds=chance.uniform(0.0, 40.0))
    if kind == "lose commit":
        return Fault(after, kind, chance.choice(_WITH_STORE), "", chance.randrange(1, 20))
    return Fault(after, kind, "", "", int(2 ** chance.uniform(0.0, 7.0)), 2 ** chance.uniform(-5.0, 6.0))


def _fault_of_a_host(chance: random.Random, operations: int) -> Fault:
    kind = chance.choice([*_HOST_FAULTS])
    # Most of them end before a build times out.
    seconds = chance.uniform(0.0, chance.choice((5.0, 30.0, 90.0)))
    return Fault(chance.randrange(operations), "host", chance.choice(ALL_HOSTS), kind, seconds=seconds)


def _nth(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
