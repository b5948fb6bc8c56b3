"""Behaviour of a fake host with attempts and orders: chosen by options, and the same on every run."""

import hashlib
import math
from dataclasses import dataclass, replace

from oslo_config import cfg

from compute.driver import GuestSpec

_EVERY_SPAWN_FAILS = "every spawn fails here"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The behaviour of a host for one attempt, or for one order; orders are never refused."""

    #: The reason to refuse the guest before the claim is accepted.
    refusal: str | None = None
    #: The duration of the spawn or order in seconds; infinite if it hangs until the guest is destroyed.
    seconds: float = 0.0
    #: Whether it cannot be cut short: it ends late, even if the guest is no longer wanted.
    stubborn: bool = False
    #: Seconds for which the host is dead, beginning in the middle of the work, which then fails.
    dead_seconds: float = 0.0
    #: The reason of its failure.
    fault: str | None = None
    #: Whether it would fail on every host.
    is_final: bool = False


def chance(seed: int, instance_uuid: str, host: str) -> float:
    """Return the random number in [0, 1) that decides whether an instance fails on a host: the same on every run."""
    drawn = hashlib.sha256(f"{seed}/{instance_uuid}/{host}".encode()).digest()
    # 53 bits, as many as a float holds: more would round the largest draws up to 1.
    return float((int.from_bytes(drawn[:8], "big") >> 11) / 2**53)


def chosen(options: cfg.ConfigOpts.GroupAttr, host: str, guest: GuestSpec) -> Behaviour:
    """Return the behaviour of ``host`` for an attempt at ``guest``, by the options of ``[fake_driver]``."""
    is_live = guest.moving is not None and guest.moving.kind == "live-migration"
    return replace(
        _lasting(options, host, options.live_migration_seconds if is_live else options.spawn_seconds),
        refusal=_refusal(options, host, guest),
        fault=_fault(options, host, guest),
        is_final=_is_broken(options, guest),
    )


def chosen_for_order(options: cfg.ConfigOpts.GroupAttr, host: str, *, rebuild: bool) -> Behaviour:
    """Return the behaviour of ``host`` for an order to a guest, by the options; a rebuild takes as long as a spawn."""
    fault = "its guests neither stop nor start" if host in options.stuck_hosts else None
    if not rebuild:
        return Behaviour(fault=fault)
    fault = _EVERY_SPAWN_FAILS if host in options.failing_hosts else fault
    return replace(_lasting(options, host, options.spawn_seconds), fault=fault)


def _lasting(options: cfg.ConfigOpts.GroupAttr, host: str, seconds: float) -> Behaviour:
    """Return the behaviour for work that takes ``seconds``, unless an option makes it longer."""
    hangs, is_late = host in options.hanging_hosts, host in options.late_hosts
    return Behaviour(
        seconds=math.inf if hangs else options.late_seconds if is_late else seconds,
        stubborn=is_late and not hangs,
        dead_seconds=options.dead_seconds if host in options.dying_hosts else 0.0,
    )


def _is_broken(options: cfg.ConfigOpts.GroupAttr, guest: GuestSpec) -> bool:
    return guest.request_spec.image.id in options.broken_images


def _refusal(options: cfg.ConfigOpts.GroupAttr, host: str, guest: GuestSpec) -> str | None:
    if host in options.refusing_hosts:
        return "this host takes no guests"
    if guest.moving is not None and host in options.refusing_moves_hosts:
        return "this host takes no guests from other hosts"
    return None


def _fault(options: cfg.ConfigOpts.GroupAttr, host: str, guest: GuestSpec) -> str | None:
    if _is_broken(options, guest):
        return f"image {guest.request_spec.image.id} is broken"
    if host in options.failing_hosts:
        return _EVERY_SPAWN_FAILS
    if guest.moving is not None and host in options.failing_moves_hosts:
        return "no guest that comes from another host starts here"
    if chance(options.seed, guest.instance_uuid, host) < options.fail_rate:
        return "the guest did not start"
    return None
