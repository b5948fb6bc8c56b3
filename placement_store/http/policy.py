"""Authorize callers by Placement's policy rules, their names and defaults; an operator's policy file overrides them."""

import logging
import time
from collections.abc import Hashable, Mapping, Sequence

from oslo_config import cfg
from oslo_context.context import RequestContext
from oslo_policy import policy

from moorage import errors
from placement_store.http.refusals import HTTPRefusal
from placement_store.http.resources import RESOURCES

LOG = logging.getLogger(__name__)

# Rules that the others refer to.
_ADMIN, _SERVICE, _ADMIN_OR_SERVICE = "admin_api", "service_api", "admin_or_service_api"
_PROJECT_READER, _PROJECT_READER_OR_ADMIN = "project_reader_api", "admin_or_project_reader_or_service_api"

_BASIS = [
    policy.RuleDefault(_ADMIN, "role:admin", description="The administrator of the cloud."),
    policy.RuleDefault(_SERVICE, "role:service", description="Another service of the cloud."),
    policy.RuleDefault(
        _ADMIN_OR_SERVICE, f"rule:{_ADMIN} or rule:{_SERVICE}", description="The administrator, or a service."
    ),
    policy.RuleDefault(
        _PROJECT_READER, "role:reader and project_id:%(project_id)s", description="A reader of the requested project."
    ),
    policy.RuleDefault(
        _PROJECT_READER_OR_ADMIN,
        f"rule:{_ADMIN_OR_SERVICE} or rule:{_PROJECT_READER}",
        description="The administrator, a service, or a reader of the requested project.",
    ),
]

#: Seconds for which a decision is cached: changed rules take effect soon, and a client that writes in a loop is cheap.
_DECISIONS_HOLD = 1.0

#: The rules whose default is not `admin_or_service_api`.
_OWN_DEFAULTS = {"placement:reshaper:reshape": _SERVICE, "placement:usages": _PROJECT_READER_OR_ADMIN}


def list_rules() -> list[policy.RuleDefault]:
    """Return all rules with their defaults, for the tools of oslo.policy."""
    operations: dict[str, list[tuple[str, str]]] = {}
    for resource in RESOURCES:
        for method, declared in resource.operations.items():
            if declared.rule is not None:
                operations.setdefault(declared.rule, []).append((method, resource.path))
    return [*_BASIS, *(_documented(name, about) for name, about in operations.items())]


def _documented(name: str, about: Sequence[tuple[str, str]]) -> policy.RuleDefault:
    return policy.DocumentedRuleDefault(
        name=name,
        check_str=f"rule:{_OWN_DEFAULTS.get(name, _ADMIN_OR_SERVICE)}",
        description=", ".join(f"{method} {path}" for method, path in about),
        # No operation needs system scope: its objects belong to a project, or to none.
        scope_types=["project"],
        operations=[{"method": method, "path": path} for method, path in about],
        # Also allowed if [oslo_policy] enforce_new_defaults is false.
        deprecated_rule=policy.DeprecatedRule(
            name,
            f"rule:{_ADMIN}",
            deprecated_reason="The administrator alone was let in before other services had a role.",
            deprecated_since="0.1",
        ),
    )


class _RuleReader(policy.Enforcer):
    """Reads the operator's rules, and keeps those that it has as long as the policy file is invalid."""

    _has_read = False
    _refused = ""

    def load_rules(self, force_reload: bool = False) -> None:
        """Read the rules if their files have changed; before each decision, the library calls this.

        :raises ConfigurationError: the policy file is invalid, and none was read before.
        """
        try:
            super().load_rules(force_reload)
        except Exception as fault:  # the library raises errors of many classes
            reason = f"the policy file {self.policy_path} cannot be used: {' '.join(str(fault).split())}"
            if not self._has_read:
                raise errors.ConfigurationError(reason=reason) from fault
            # Some faults are raised again at each decision.
            if reason != self._refused:
                LOG.error("The former rules stay in force: %s", reason)
            self._refused = reason
        else:
            self._has_read, self._refused = True, ""


class PolicyEnforcer:
    """The rules' defaults and the operator's policy file, which is read again when it changes.

    :param rules: the rules with their defaults; those of the API if none are given.
    :raises ConfigurationError: the policy file that an operator has named does not exist, cannot be parsed, or contains
        something other than rules.

    A decision is cached for a moment: checking for changed files and evaluating the rules takes a sixth of the cost of
    a write in this process.
    """

    def __init__(self, conf: cfg.ConfigOpts, rules: Sequence[policy.RuleDefault] | None = None) -> None:
        self._enforcer = _RuleReader(conf)
        named, where = conf.oslo_policy.policy_file, conf.get_location("policy_file", "oslo_policy")
        # The library would apply the defaults. Without the option, there need not be a file.
        if where is not None and where.location.is_user_controlled and conf.find_file(named) is None:
            raise errors.ConfigurationError(reason=f"[oslo_policy] policy_file = {named}: there is no such file")
        # The old defaults are documented; every process would log the warnings again.
        self._enforcer.suppress_deprecation_warnings = True
        self._enforcer.suppress_default_change_warnings = True
        self._enforcer.register_defaults(list_rules() if rules is None else rules)
        self._enforcer.load_rules()
        self._decided: dict[Hashable, bool] = {}
        self._decided_until = 0.0

    def authorize(self, rule: str, caller: RequestContext, target: Mapping[str, str | None]) -> None:
        """Check that the rule allows the caller.

        :param target: the attributes of the operation's object, for rules that compare them with the caller.
        :raises HTTPRefusal: 403, the rule does not allow it.
        """
        about = {"project_id": caller.project_id, "user_id": caller.user_id, **target}
        if time.monotonic() > self._decided_until:
            # A new dictionary: a thread that is just deciding by the old rules writes into the old one.
            self._decided, self._decided_until = {}, time.monotonic() + _DECISIONS_HOLD
        decided, question = self._decided, (rule, _hashable(about), _hashable(caller.to_policy_values()))
        if question not in decided:
            decided[question] = bool(self._enforcer.authorize(rule, about, caller))
        if not decided[question]:
            raise HTTPRefusal(403, f"The policy does not allow {rule} to be performed.")


def _hashable(values: Mapping[str, object]) -> Hashable:
    return frozenset((name, tuple(one) if isinstance(one, list) else one) for name, one in values.items())
