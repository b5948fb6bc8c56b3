"""Wait until every running scheduler has seen a change that has just been made."""

from concurrent.futures import ThreadPoolExecutor

from oslo_config import cfg

from moorage import errors
from moorage.cli.clients import Clients
from moorage.cli.services import up
from moorage.messages import CatchUpView, ListServices

#: The part of a scheduler's time to answer in which it waits for decisions in flight.
_PATIENCE = 0.7
#: The limit of the message, in seconds; see :class:`~moorage.messages.CatchUpView`.
_MAX_PATIENCE = 60.0


def schedulers_behind(conf: cfg.ConfigOpts, clients: Clients, seconds: float) -> dict[str, str]:
    """Make all running schedulers catch up with the store; return the failures by scheduler.

    A scheduler without a heartbeat for longer than ``[service] silent_after`` is not asked. One that starts after the
    change reads it before it serves.

    :param seconds: the time limit for each scheduler's answer; ``clients`` must have the same.
    """
    try:
        services = clients.topic("placement").call(ListServices())
    except errors.MoorageError as fault:
        return {"(which there are is not known)": str(fault)}
    running = up(services, "scheduler", conf.service.silent_after)
    message = CatchUpView(patience=min(seconds * _PATIENCE, _MAX_PATIENCE))

    def ask(name: str | None) -> str | None:
        try:
            answer = clients.topic("scheduler", name).call(message)
        except errors.MoorageError as fault:
            return str(fault)
        return f"{answer.undecided} of its decisions are still under way" if answer.undecided else None

    # If none has reported itself yet, ask any one that serves.
    names: list[str | None] = [*running] or [None]
    with ThreadPoolExecutor(len(names)) as pool:
        reasons = dict(zip(names, pool.map(ask, names), strict=True))
    return {name or "(any)": reason for name, reason in reasons.items() if reason is not None}
