"""The requests of a story's people: each is sent until it is answered, and the answers are noted."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from harness.cloud import RunningCloud
from harness.simulation.clients.answers import Told, essence, until_answered
from harness.simulation.machine.kernel import KERNEL, OUTSIDE
from harness.simulation.story import CELLS, HOSTS_OF_A_CELL, SERVERS, Action, Story
from moorage import errors, ids
from moorage.messages import GetAllocations
from moorage.messages.wire import Message, Mutation, R
from moorage.model import Consumer, ServerGroup

#: What each kind of action does.
Methods = Mapping[str, Callable[[Action], None]]

#: Answers that show that something is broken, and not that a request is refused.
_BROKEN = (errors.InternalError, errors.ConfigurationError)
#: The server groups: their policies, and the members that one host may have.
_RULES: tuple[tuple[Any, int], ...] = (
    ("anti-affinity", 1),
    ("affinity", 1),
    ("anti-affinity", 2),
    ("soft-affinity", 1),
    ("soft-anti-affinity", 1),
)


class Requests:
    """Sends the requests of a story and notes the answers."""

    def __init__(self, cloud: RunningCloud, story: Story) -> None:
        self._cloud = cloud
        self._story = story
        self.servers: list[str | None] = [None] * SERVERS
        self.told: dict[str, Told] = defaultdict(Told)
        #: Consumers that are not servers.
        self.others: set[str] = set()
        groups = [
            ServerGroup(uuid=self.uuid("group", policy, most), policy=policy, max_server_per_host=most)
            for policy, most in _RULES
        ]
        self.groups = {group.uuid: group for group in groups}
        self.forced_down = False
        self.broken: list[str] = []
        #: The requests that may be repeated, each with the time at which it was first sent.
        self._asked: list[tuple[float, Callable[[], object]]] = []
        self._answers: dict[str, Any] = {}
        self._sent: set[str] = set()
        self._busy = 0

    @property
    def are_answered(self) -> bool:
        """True if no caller waits for an answer."""
        return not self._busy

    def at_once(self, action: Action, do: Callable[[], object]) -> None:
        """Do something beside the caller's own work."""

        def done() -> None:
            try:
                do()
            except _BROKEN as fault:
                self.broken.append(f"{action} is answered with {fault}")
            except errors.MoorageError as refusal:
                KERNEL.note(f"{action}: {refusal}")
            finally:
                self._busy -= 1

        self._busy += 1
        KERNEL.start(done, OUTSIDE, str(action))

    def compete(self, action: Action, rivals: Iterable[Callable[[], object]], broken: str) -> None:
        """Do several things at once, of which only one may succeed; otherwise a promise is broken."""
        won: list[Callable[[], object]] = []

        def do(rival: Callable[[], object]) -> None:
            rival()
            won.append(rival)
            if len(won) > 1:
                self.broken.append(broken)

        for rival in rivals:
            self.at_once(action, partial(do, rival))

    def again(self, ask: Callable[[], object]) -> None:
        """Send a request, and note it so that it may be repeated."""
        self._asked.append((KERNEL.now, ask))
        ask()

    def send(self, topic: str, message: Mutation[Any]) -> Any:
        """Send a request until it is answered; all answers to one request must be equal."""
        self._sent.add(message.request_id)
        answer = self.call(topic, message)
        told = essence(answer)
        first = self._answers.setdefault(message.request_id, told)
        if first != told:
            self.broken.append(f"promise 4: {message.method} is answered with {first}, and then with {told}")
        return answer

    def is_first(self, message: Mutation[Any]) -> bool:
        """Return whether a request has not been sent yet."""
        return message.request_id not in self._sent

    def call(self, topic: str, message: Message[R]) -> R:
        """Send a message until it is answered."""
        return until_answered(lambda: self._cloud.client(topic, timeout=20.0).call(message))

    def consumer(self, uuid: str) -> Consumer | None:
        """Return a consumer with its allocations, if it exists."""
        try:
            return self.call("placement", GetAllocations(consumer_uuid=uuid))
        except errors.ConsumerNotFound:
            return None

    def host_of(self, action: Action) -> str:
        """Return the host that an action chooses."""
        return f"{CELLS[action.choice // 2 % 2]}-host-{action.choice // 4 % HOSTS_OF_A_CELL + 1:04d}"

    def request_id(self, action: Action, *more: object) -> str:
        """Return the request id of an action, or of one of its further requests."""
        return self.uuid("request", action.number, *more)

    def uuid(self, *words: object) -> str:
        """Return the uuid of something in this story."""
        return ids.derived("simulation", self._story.seed, *words)
