"""Audits of the cloud at a viewer's request: one at a time, and all viewers see the last one."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from oslo_config import cfg

from moorage import errors
from moorage.cli.audit.collector import AuditCollector
from moorage.cli.audit.command import Examination, examine
from moorage.cli.audit.findings import Finding
from moorage.cli.clients import Clients

LOG = logging.getLogger(__name__)

#: Seconds between the two collections of an audit, as `moorage audit` has them by default.
_SETTLE_SECONDS = 2.0
#: Seconds after an audit before another one may start: an audit reads the whole store and all records.
_REST_SECONDS = 30.0


class Audits:
    """Runs `moorage audit` in a thread, and keeps its findings.

    :param audit: runs one audit.
    :param clock: measures the time since the last audit; the clock of the times that are shown may be set back.
    """

    def __init__(self, audit: Callable[[], Examination], clock: Callable[[], float] = time.monotonic) -> None:
        self._audit = audit
        self._clock = clock
        self._rests_until = float("-inf")
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {"state": "none"}
        self._running: threading.Thread | None = None

    @classmethod
    def of_cloud(cls, conf: cfg.ConfigOpts) -> "Audits":
        """Return the audits of a configured cloud."""
        return cls(lambda: _audited(conf))

    def state(self) -> dict[str, Any]:
        """Return the state of the last audit, and its findings once it has ended."""
        with self._lock:
            return {**self._state, "now": time.time()}

    def begin(self) -> dict[str, Any]:
        """Start an audit, unless one is running or has just ended, and return the state."""
        with self._lock:
            if self._state["state"] != "running" and self._clock() >= self._rests_until:
                now = time.time()
                running = threading.Thread(target=self._run, args=(now,), name="audit", daemon=True)
                # This may fail. Otherwise the thread waits for the lock before it sets another state.
                running.start()
                self._running = running
                self._state = {"state": "running", "began_at": now}
        return self.state()

    def stop(self, seconds: float) -> None:
        """Wait for a running audit, at most for ``seconds``."""
        if self._running is not None:
            self._running.join(seconds)

    def _run(self, began: float) -> None:
        outcome = self._outcome()
        with self._lock:
            self._state = {**outcome, "began_at": began, "ended_at": time.time()}
            if outcome["state"] == "done":
                self._rests_until = self._clock() + _REST_SECONDS

    def _outcome(self) -> dict[str, Any]:
        try:
            found = self._audit()
        except errors.MoorageError as fault:
            return {"state": "failed", "reason": str(fault)}
        except Exception as fault:
            LOG.exception("The audit has failed")
            return {"state": "failed", "reason": f"an unexpected fault: {type(fault).__name__}"}
        return {
            "state": "done",
            "findings": [_described(one) for one in found.findings],
            "unseen": found.unseen,
        }


def _described(one: Finding) -> dict[str, Any]:
    # A consumer that is on several hosts is an instance: the one of a migration holds only the source.
    instance = one.subject if one.kind == "doubled" else one.instance_uuid
    return {"kind": one.kind, "subject": one.subject, "instance": instance, "detail": one.detail}


def _audited(conf: cfg.ConfigOpts) -> Examination:
    # Each audit has clients of its own, because a client remembers which topics were served when the audit began.
    with closing(Clients(conf, conf.rpc.call_timeout)) as clients:
        return examine(lambda: AuditCollector(conf, clients).collect(), _SETTLE_SECONDS)
