"""The requests of a story's people: how operators and writers send them, and note the answers, beside the callers."""

from collections.abc import Callable
from typing import Any, Protocol

from harness.simulation.clients.answers import Told
from harness.simulation.story import Action
from moorage.messages.wire import Message, Mutation
from moorage.model import ServerGroup


class Requests(Protocol):
    """Sends the requests of a story and notes the answers."""

    servers: list[str | None]
    told: dict[str, Told]
    #: Consumers that are not servers.
    others: set[str]
    groups: dict[str, ServerGroup]
    forced_down: bool
    broken: list[str]

    def call(self, topic: str, message: Message[Any]) -> Any:
        """Send a message until it is answered."""

    def send(self, topic: str, message: Mutation[Any]) -> Any:
        """Send a request until it is answered; all answers to one request must be equal."""

    def again(self, ask: Callable[[], object]) -> None:
        """Send a request, and note it so that it may be repeated."""

    def at_once(self, action: Action, do: Callable[[], object]) -> None:
        """Do something beside the caller's own work."""

    def is_first(self, message: Mutation[Any]) -> bool:
        """Return whether a request has not been sent yet."""

    def host_of(self, action: Action) -> str:
        """Return the host that an action chooses."""

    def request_id(self, action: Action, *more: object) -> str:
        """Return the request id of an action, or of one of its further requests."""

    def uuid(self, *words: object) -> str:
        """Return the uuid of something in this story."""
