"""Observe a scheduler: check whether it can decide, and sample the metrics of its host view."""

from collections.abc import Mapping, Sequence

import numpy as np
from oslo_config import cfg

from moorage import metrics
from moorage.bus.bus import BusServer
from moorage.db.schemas import SchemaProbe
from moorage.metrics import GaugeSample
from moorage.service.readiness import Check, NotReady, Sampler
from placement_store.schema import MAIN
from placement_store.service import PlacementRole
from scheduler.decide.environment import DecisionEnvironment
from scheduler.decide.in_flight import InFlight
from scheduler.policy import ActivePolicy

#: The view is too old if its last read began more than this number of comparison intervals and these seconds ago.
_COMPARISONS, _SPARE_SECONDS = 3, 5.0


class SchedulerObservation:
    """The checks and samplers of a running scheduler."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        servers: Sequence[BusServer | PlacementRole],
        environment: DecisionEnvironment,
        decisions: InFlight,
        policy: ActivePolicy,
    ) -> None:
        self._oldest = _COMPARISONS * conf.scheduler.view_compare_interval + _SPARE_SECONDS
        self._servers = servers
        self._follower, self._host_cache = environment.follower, environment.host_cache
        self._decisions = decisions
        self._policy = policy
        self._probe = SchemaProbe(conf, MAIN)

    def checks(self) -> Mapping[str, Check]:
        """Return the checks by name."""
        return {"database": self._probe.check, "broker": self._check_servers, "view": self._check_view}

    def samplers(self) -> Mapping[str, Sampler]:
        """Return the functions that read samples, by name."""
        return {
            "view": self._view,
            "decisions": lambda: [metrics.DECISIONS_IN_PROGRESS.sample(self._decisions.count())],
            "policy": lambda: [metrics.RELOAD_REFUSED.sample(int(self._policy.is_reload_refused))],
        }

    def close(self) -> None:
        """Close the probe's connection."""
        self._probe.close()

    def _check_servers(self) -> None:
        for server in self._servers:
            server.check()

    def _check_view(self) -> None:
        """Check that the view follows the store.

        :raises NotReady: it has not followed the store for too long.
        """
        if (age := self._follower.age()) > self._oldest:
            raise NotReady(f"the host view has not followed the store for {age:.0f} s")

    def _view(self) -> list[GaugeSample]:
        view = self._host_cache.snapshot()
        states = {
            "up": view.alive & ~view.forced_down,
            "down": ~view.alive & ~view.forced_down,
            "disabled": view.disabled,
            "forced_down": view.forced_down,
        }
        hosts = [metrics.VIEW_HOSTS.sample(int(np.count_nonzero(mask)), state) for state, mask in states.items()]
        return [metrics.VIEW_AGE.sample(self._follower.age()), *hosts]
