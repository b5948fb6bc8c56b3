"""What a fake host does with an attempt: chosen by options, and the same on every run."""

import hashlib
import math
from dataclasses import dataclass

from oslo_config import cfg


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a host does with one attempt."""

    #: Why it does not even accept the claim.
    refusal: str | None = None
    #: How long its spawn takes; infinite for one that hangs until it is destroyed.
    seconds: float = 0.0
    #: Whether its spawn cannot be cut short: it comes to its end late, wanted or not.
    stubborn: bool = False
    #: For how long the host is dead from the middle of the spawn on; that fails it.
    dead_seconds: float = 0.0
    #: Why its spawn then fails.
    fault: str | None = None


def chance(seed: int, instance_uuid: str, host: str) -> float:
    """Return the draw, in [0, 1), that decides whether an instance fails on a host: the same on every run."""
    drawn = hashlib.sha256(f"{seed}/{instance_uuid}/{host}".encode()).digest()
    # 53 bits, as many as a float holds: more would round the largest draws up to 1.
    return float((int.from_bytes(drawn[:8], "big") >> 11) / 2**53)


def chosen(options: cfg.ConfigOpts.GroupAttr, host: str, instance_uuid: str) -> Behaviour:
    """Return what the options of ``[fake_driver]`` make of an attempt at an instance on ``host``."""
    late = host in options.late_hosts
    return Behaviour(
        refusal="this host takes no guests" if host in options.refusing_hosts else None,
        seconds=_seconds(options, host),
        stubborn=late and host not in options.hanging_hosts,
        dead_seconds=options.dead_seconds if host in options.dying_hosts else 0.0,
        fault=_fault(options, host, instance_uuid),
    )


def _seconds(options: cfg.ConfigOpts.GroupAttr, host: str) -> float:
    if host in options.hanging_hosts:
        return math.inf
    return float(options.late_seconds if host in options.late_hosts else options.spawn_seconds)


def _fault(options: cfg.ConfigOpts.GroupAttr, host: str, instance_uuid: str) -> str | None:
    if host in options.failing_hosts:
        return "every spawn fails here"
    if chance(options.seed, instance_uuid, host) < options.fail_rate:
        return "the guest did not start"
    return None
