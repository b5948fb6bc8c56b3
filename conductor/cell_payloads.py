"""What a cell writes down before each of its steps."""

from typing import Literal

from moorage.model import Value

#: What is known of the guest of an attempt that has ended, and so what becomes of its claim. ``gone``: its host has
#: said so, the claim is released. ``unstarted``: it is so if no host has accepted the claim; if one has, its report is
#: waited for. ``unknown``: what was accepted stays held, as a residue, until nothing of the guest is left.
Fate = Literal["gone", "unstarted", "unknown"]


class Starting(Value, frozen=True, kw_only=True):
    """Steps `start` and `wait` of a build: the attempt by its number."""

    number: int


class Swapping(Value, frozen=True, kw_only=True):
    """Step `swap` of a build: from the attempt that has failed to the next one."""

    failed: int
    candidate: int
    fate: Fate
    reason: str


class Releasing(Value, frozen=True, kw_only=True):
    """Step `release` of a build: every attempt has failed."""

    #: The last of them, and its fate; without it, whatever the instance may hold goes for good.
    failed: int | None
    fate: Fate
    #: Why the last one has failed, or why the instance is in error without all of them having failed.
    reason: str


class Deleting(Value, frozen=True, kw_only=True):
    """Step `release` of a deletion."""

    #: A host that may have the guest does not answer.
    leave_residue: bool


class Cleaning(Value, frozen=True, kw_only=True):
    """Both steps of a cleaning; its subject is the attempt."""

    instance_uuid: str
