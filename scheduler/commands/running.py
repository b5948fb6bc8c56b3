"""Call all running schedulers, for instance to check that they have seen a change that was just made."""

from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from oslo_config import cfg

from moorage import errors
from moorage.cli.clients import Clients
from moorage.cli.services import to_call
from moorage.messages import CatchUpView, ListServices
from moorage.messages.wire import Message

R = TypeVar("R")

#: The part of the time limit of a scheduler's answer in which it waits for decisions in flight.
_PATIENCE = 0.7
#: The limit of the message, in seconds; see :class:`~moorage.messages.CatchUpView`.
_MAX_PATIENCE = 60.0


def ask(
    conf: cfg.ConfigOpts, clients: Clients, message: Message[R], only: str | None = None
) -> dict[str, R | errors.MoorageError]:
    """Call all running schedulers in parallel, or ``only`` one; return the answers and the errors by scheduler.

    A scheduler without a heartbeat for longer than ``[service] silent_after`` is called only if all are like that. If
    none has reported itself yet, any one that serves is called.

    :raises MoorageError: the running schedulers cannot be listed.
    """
    names: list[str | None] = [only]
    if only is None:
        services = clients.topic("placement").call(ListServices())
        names = [*to_call(services, "scheduler", conf.service.silent_after)] or [None]

    def ask_one(name: str | None) -> R | errors.MoorageError:
        try:
            return clients.topic("scheduler", name).call(message)
        except errors.MoorageError as fault:
            return fault

    with ThreadPoolExecutor(len(names)) as pool:
        answers = pool.map(ask_one, names)
    return {name or "(any)": answer for name, answer in zip(names, answers, strict=True)}


def behind(conf: cfg.ConfigOpts, clients: Clients, seconds: float) -> dict[str, str]:
    """Make all running schedulers catch up with the store; return the failures by scheduler.

    A scheduler that starts after the change reads it before it serves.

    :param seconds: the time limit for each scheduler's answer; ``clients`` must have the same.
    """
    try:
        answers = ask(conf, clients, CatchUpView(patience=min(seconds * _PATIENCE, _MAX_PATIENCE)))
    except errors.MoorageError as fault:
        return {"(the running schedulers are unknown)": str(fault)}
    failures = {}
    for name, answer in answers.items():
        if isinstance(answer, errors.MoorageError):
            failures[name] = str(answer)
        elif answer.undecided:
            failures[name] = f"{answer.undecided} of its decisions are still under way"
    return failures
