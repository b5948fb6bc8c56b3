"""Waiting, for an operator, until no scheduler decides by anything older than a change that has just been made."""

from concurrent.futures import ThreadPoolExecutor

from oslo_config import cfg

from moorage import errors
from moorage.cli.clients import Clients
from moorage.cli.services import up
from moorage.messages import CatchUpView, ListServices

#: Of the time that a scheduler has for its answer, it waits this part for decisions that are under way.
_PATIENCE = 0.7
#: Of which nobody waits longer than this; see :class:`~moorage.messages.CatchUpView`.
_MAX_PATIENCE = 60.0


def behind(conf: cfg.ConfigOpts, clients: Clients, seconds: float) -> dict[str, str]:
    """Have all running schedulers catch up with the store; return why it is not known of some that they have, by name.

    A scheduler that is silent for longer than ``[service] silent_after`` is not asked. One that starts after the change
    reads it before it serves.

    :param reach: to all of them; what waits for an answer does so for ``seconds`` at most.
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

    # None has reported itself yet: any one that serves.
    names: list[str | None] = [*running] or [None]
    with ThreadPoolExecutor(len(names)) as pool:
        reasons = dict(zip(names, pool.map(ask, names), strict=True))
    return {name or "(any)": reason for name, reason in reasons.items() if reason is not None}
