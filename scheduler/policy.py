"""The scheduling policy: loaded from a configuration as a whole, and replaced as a whole or not at all.

A decision uses the policy that is in force when it begins until its end.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

import msgspec
from msgspec import structs
from oslo_config import cfg

from moorage import errors, metrics
from moorage.bus.bus import serves
from moorage.config.options import main_database, required
from moorage.messages import ShowPolicy, wire
from moorage.model.inspection import PluginUse, PolicyState, RefusedReload
from moorage.plugin import Filter, RequestFilter, Weigher
from scheduler.decide.environment import DecisionPolicy
from scheduler.decide.evaluation import EvaluationPool
from scheduler.decide.plugin_failures import FailureCounts, PluginFailures
from scheduler.plugins.lists import enabled
from scheduler.plugins.loading import OURS, check_names, load_filters, load_request_filters, load_weighers
from scheduler.plugins.watch import PluginWatchdog

LOG = logging.getLogger(__name__)

#: The part of a configuration that is the policy: whole groups, and some options of the scheduler's group.
_POLICY_GROUPS = ("[filters] ", "[weighers] ", "[request_filters] ")
_OPTIONS = frozenset(
    {"enabled_filters", "enabled_weighers", "enabled_request_filters", "host_subset_size", "broken_plugin"}
)
#: Options that each service or its command line sets: if they differ, this is no change of the file.
_OF_EACH_SERVICE = frozenset({"[DEFAULT] log_service_name", "[service] metrics_port"})
_HIDDEN = "***"
_FINGERPRINT_LENGTH = 12

_Plugin = Filter | Weigher | RequestFilter


@dataclass(frozen=True, slots=True, eq=False)
class SchedulingPolicy:
    """The filters, weighers and request filters with their options, and how their results are used."""

    decision_policy: DecisionPolicy
    #: The policy as `moorage scheduler config show` shows it.
    described: PolicyState

    @classmethod
    def load(
        cls, conf: cfg.ConfigOpts, failure_counts: FailureCounts, watch: PluginWatchdog | None = None
    ) -> "SchedulingPolicy":
        """Load the policy of a configuration.

        :param watch: limits the time of plug-ins that are not built-in.
        :raises ConfigurationError: a plug-in does not exist, cannot be loaded, or refuses the values of its options;
            or a file has an option in a plug-ins' group that no installed plug-in has.
        """
        check_names(conf)
        settings = conf.scheduler
        filters = load_filters(conf, enabled(conf, "enabled_filters"))
        weighers = load_weighers(conf, enabled(conf, "enabled_weighers"))
        request_filters = load_request_filters(conf, enabled(conf, "enabled_request_filters"))
        described = PolicyState(
            fingerprint="",
            filters=tuple(_use(conf, "filters", *each) for each in filters),
            weighers=tuple(_use(conf, "weighers", *each) for each in weighers),
            request_filters=tuple(_use(conf, "request_filters", *each) for each in request_filters),
            host_subset_size=settings.host_subset_size,
            broken_plugin=settings.broken_plugin,
        )
        for kind, each in (("filter", filters), ("weigher", weighers), ("request filter", request_filters)):
            for plugin in each:
                metrics.PLUGIN_FAILURES.labels(kind, plugin.name)
        # Built-in plug-ins are not timed; without others, decisions need no worker threads.
        loaded: list[Any] = [*filters, *weighers, *request_filters]
        is_foreign = any(_is_foreign(each.plugin) for each in loaded)
        skip, used_watch = settings.broken_plugin == "skip", watch if is_foreign else None
        plugin_failures = PluginFailures(failure_counts, skip=skip, watch=used_watch)
        decision_policy = DecisionPolicy(
            filters,
            weighers,
            request_filters,
            settings.host_subset_size,
            plugin_failures,
            # Other plug-ins may depend on more than the host and the request, so no evaluation is kept.
            EvaluationPool(0) if is_foreign else EvaluationPool(),
        )
        described = structs.replace(described, fingerprint=_fingerprint(conf, described))
        return cls(decision_policy, described)


class ActivePolicy:
    """The policy in force, and the outcome of the last reload.

    :param conf: the configuration at start; a later one may differ in more than the policy.
    :param put_in_force: makes new decisions use a policy; must not raise.
    """

    def __init__(
        self,
        policy: SchedulingPolicy,
        conf: cfg.ConfigOpts,
        failure_counts: FailureCounts,
        watch: PluginWatchdog,
        put_in_force: Callable[[SchedulingPolicy], None],
    ) -> None:
        self._started_with = _values(conf)
        self._failure_counts = failure_counts
        self._watch = watch
        self._put_in_force = put_in_force
        self._reloading = threading.Lock()
        self._lock = threading.Lock()
        self._policy = policy
        self._since = time.monotonic()
        self._refused: tuple[float, str] | None = None
        self._needs_restart: tuple[str, ...] = ()

    def reload(self, reread: Callable[[], cfg.ConfigOpts]) -> bool:
        """Put the policy of a configuration in force, or refuse it as a whole; return whether it is in force.

        A refusal is logged, and shown by :meth:`show`.

        :param reread: reads the configuration again.
        """
        # A lock of its own: plug-ins may take long to load, and `show` must not wait for them.
        with self._reloading:
            before = self._policy.described.fingerprint
            try:
                conf = reread()
                # An empty or truncated file is valid and has the default policy, but no service can start with it.
                required(conf, "DEFAULT", "transport_url")
                main_database(conf)
                policy = SchedulingPolicy.load(conf, self._failure_counts, self._watch)
                needs_restart = _differing(self._started_with, _values(conf))
            except errors.UnknownPlugin as fault:
                return self._refuse(before, f"{fault} A package that was installed since the start needs a restart.")
            except errors.MoorageError as fault:
                return self._refuse(before, str(fault))
            except Exception as fault:  # anything that a file or a plug-in's constructor may raise: the old one stays
                LOG.debug("The reloaded configuration cannot be loaded", exc_info=True)
                return self._refuse(before, f"{type(fault).__name__}: {fault}")
            # Nothing can fail from here on: decisions and `show` get the new policy together.
            with self._lock:
                self._put_in_force(policy)
                self._policy, self._since, self._refused = policy, time.monotonic(), None
                self._needs_restart = needs_restart
        LOG.info("The configuration is reloaded: policy %s replaces %s", policy.described.fingerprint, before)
        if needs_restart:
            LOG.warning("Changed in the configuration, and not taken before a restart: %s", ", ".join(needs_restart))
        return True

    @serves(ShowPolicy)
    def show(self, message: ShowPolicy) -> PolicyState:  # noqa: ARG002
        """Answer :class:`~moorage.messages.ShowPolicy`."""
        with self._lock:
            now, refused = time.monotonic(), self._refused
            return structs.replace(
                self._policy.described,
                age=now - self._since,
                refused=refused and RefusedReload(reason=refused[1], age=now - refused[0]),
                needs_restart=self._needs_restart,
                broken=self._failure_counts.counts(),
                breaking=self._failure_counts.breaking(),
                slow=self._watch.slow(),
            )

    @property
    def is_reload_refused(self) -> bool:
        """True if the last reload was refused."""
        return self._refused is not None

    def _refuse(self, stays: str, reason: str) -> bool:
        reason = " ".join(reason.split())
        LOG.error("The reloaded configuration is refused, and policy %s stays in force: %s", stays, reason)
        with self._lock:
            self._refused = time.monotonic(), reason
        return False


# --- The description of a policy ------------------------------------------------------------------------------------


def _use(conf: cfg.ConfigOpts, group: str, name: str, plugin: _Plugin, multiplier: float | None = None) -> PluginUse:
    kind = type(plugin)
    values = {option.dest: _HIDDEN if option.secret else conf[group][option.dest] for option in kind.options}
    settings = msgspec.to_builtins(values, str_keys=True, enc_hook=str)
    source = f"{kind.__module__}:{kind.__qualname__}{_version(kind)}"
    return PluginUse(name=name, source=source, settings=settings, multiplier=multiplier)


def _version(kind: type) -> str:
    """Return the packages of a plug-in class with their versions, or nothing for a built-in one."""
    top = kind.__module__.split(".")[0]
    named = [f"{owner} {metadata.version(owner)}" for owner in _owners().get(top, ())] if top not in OURS else []
    return f" ({', '.join(sorted(set(named)))})" if named else ""


def _is_foreign(plugin: _Plugin) -> bool:
    return type(plugin).__module__.split(".")[0] not in OURS


@cache
def _owners() -> Mapping[str, Sequence[str]]:
    return metadata.packages_distributions()


def _fingerprint(conf: cfg.ConfigOpts, described: PolicyState) -> str:
    """Return a short hash of the policy, secret values included."""
    encoded = wire.encode(described)
    values = {name: repr(value) for name, value in _values(conf).items() if name.startswith(_POLICY_GROUPS)}
    content = json.dumps([encoded, values], sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=32).hexdigest()[:_FINGERPRINT_LENGTH]


# --- The options of a configuration ---------------------------------------------------------------------------------


def _values(conf: cfg.ConfigOpts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in conf:
        value = conf[name]
        if isinstance(value, cfg.ConfigOpts.GroupAttr):
            found.update({f"[{name}] {option}": value[option] for option in value})
        else:
            found[f"[DEFAULT] {name}"] = value
    return found


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options outside the policy whose values differ; options that only one of the two has do not count."""
    others = _OF_EACH_SERVICE | {f"[scheduler] {name}" for name in _OPTIONS}
    return tuple(
        sorted(
            name
            for name in before.keys() & after.keys() - others
            if not name.startswith(_POLICY_GROUPS) and before[name] != after[name]
        )
    )
