"""The policy rules of the page, in addition to those of the Placement API."""

from oslo_policy import policy

from placement_store.http import policy as placement_policy

READ, AUDIT = "dashboard:read", "dashboard:audit"
_ADMIN_OR_SERVICE = "rule:admin_or_service_api"
_RULES = [
    policy.DocumentedRuleDefault(
        name=READ,
        check_str=_ADMIN_OR_SERVICE,
        description="View all pages of `moorage dashboard`.",
        scope_types=["project"],
        operations=[{"method": "GET", "path": "/api/..."}],
    ),
    policy.DocumentedRuleDefault(
        name=AUDIT,
        check_str=_ADMIN_OR_SERVICE,
        description="Start an audit from `moorage dashboard`, which reads the whole store and all records.",
        scope_types=["project"],
        operations=[{"method": "POST", "path": "/api/audit"}],
    ),
]


def list_rules() -> list[policy.RuleDefault]:
    """Return the rules of the page with their defaults, for the tools of oslo.policy."""
    return list(_RULES)


def all_rules() -> list[policy.RuleDefault]:
    """Return the rules of the page, and those of the Placement API that they refer to."""
    return [*placement_policy.list_rules(), *_RULES]
