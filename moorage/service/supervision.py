"""Notifications to the supervisor of a process by systemd's protocol: ready, reloading, stopping, alive (sd_notify(3)).

Nothing is sent unless a supervisor requests notifications by the environment variables of this protocol.
"""

import logging
import os
import time

from gunicorn.systemd import sd_notify

from moorage.service import liveness

LOG = logging.getLogger(__name__)


def sign_interval() -> float | None:
    """Return the seconds between two keep-alive messages: half of the supervisor's limit; None if it has no limit.

    `WATCHDOG_PID` is ignored: each of several worker processes sends keep-alive messages, and their parent sends none.
    """
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2e6 if microseconds.isdecimal() and int(microseconds) else None


def ready() -> None:
    """Notify the supervisor that the service is ready, also after a reload."""
    sd_notify("READY=1", LOG)


def reloading() -> None:
    """Notify the supervisor that the service reloads its configuration; :func:`ready` reports the end."""
    sd_notify(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}", LOG)


def stopping() -> None:
    """Notify the supervisor that the service stops."""
    sd_notify("STOPPING=1", LOG)


def alive(*, is_worker: bool = False) -> None:
    """Notify the supervisor that the process is alive, unless one of its essential threads has died.

    :param is_worker: the process is one of several workers. Then it ends itself if a thread has died: its parent starts
        it again, and the supervisor notices nothing, because the other workers go on to notify it.
    """
    dead = ", ".join(liveness.dead())
    if not dead:
        sd_notify("WATCHDOG=1", LOG)
    elif is_worker:
        LOG.error("These threads have died; this worker ends, and its parent starts it again: %s", dead)
        os._exit(1)
    else:
        LOG.error("These threads have died; the supervisor must end the process: %s", dead)
