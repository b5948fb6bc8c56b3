"""The states of instances, attempts, migrations and operations, each with its state machine.

The strings are stored and travel in messages: they never change, and a field of a message that has one is a ``str``, so
that an older release can read the state of a newer one.
"""

from typing import Literal

# An instance. Its cell has the state. The super conductor has its own state: `building`, also after it has handed the
# instance over to the cell; `error`, for an instance that no cell has; `deleting` and `deleted`.
#
#   build ──▶ building ── guest runs ──▶ active
#                 └── every host failed ──▶ error
#
#   active, error ── rebuild ──▶ rebuilding ── guest runs ──▶ active
#                                    └── refused ──▶ error
#
#   active ── migrate, resize ──▶ moving ── guest runs ──▶ moved ── confirmed ──▶ active
#   active, error ── evacuate ──▶   │                     └── reverted ──▶ the state before
#                                   └── cancelled, or every host failed ──▶ the state before
#                                       (error, if the guest on the source cannot be started again)
#
#   active ── shelve ──▶ shelving ── released ──▶ shelved
#   shelved ── unshelve ──▶ unshelving ── guest runs ──▶ active
#                               └── cancelled, or every host failed ──▶ shelved
#
#   each of these ── delete ──▶ deleting ── released ──▶ deleted
InstanceState = Literal[
    "building",
    "active",
    "moving",
    # To be confirmed or reverted.
    "moved",
    "shelving",
    "shelved",
    "unshelving",
    "rebuilding",
    "error",
    "deleting",
    "deleted",
]
#: The states in which its hosts count an instance among the servers under way (`io_ops`).
UNDER_WAY: frozenset[InstanceState] = frozenset({"building", "moving", "unshelving", "rebuilding"})

# An attempt: one try at building, moving or unshelving an instance, on one host.
#
#   claim refused ──▶ skipped
#
#   claimed ──▶ starting ── claim accepted (first gate) ──▶ building ── guest runs (second gate) ──▶ active
#   starting, building ── host failed, silent or too late, or move aborted ──▶ failed
#
#   active ── source of a move ──▶ held ── confirm begun ──▶ ended
#                                    └── move failed or reverted ──▶ active
#   active ── shelved, or its move reverted ──▶ ended
#
#   starting, building, active, held ── instance deleted ──▶ ended
#
# An attempt that is `failed`, `skipped` or `ended` passes no gate any more.
AttemptState = Literal[
    "starting",
    "building",
    "active",
    # Its guest is the source of a move that is in progress, or that waits to be confirmed or reverted: it is wanted.
    "held",
    "failed",
    # The store refused the claim, or the host was known to be down: nothing was sent to it.
    "skipped",
    "ended",
]

# A migration. Its cell has the state. The super conductor has `placing`, then `moving` once the cell has the claim, and
# in the end the cell's final state; or `failed` at once, if there is no host for it.
#
#   ordered ──▶ placing ── claimed ──▶ moving ── guest runs ──▶ moved ── confirm ──▶ confirming ──▶ confirmed
#                  │                      │                       └── revert ──▶ reverting ──▶ reverted
#                  │                      │                                          └── given up ──▶ moved
#                  │                      ├── guest runs (live migration, evacuation) ──▶ confirming ──▶ confirmed
#                  │                      └── every host failed, or aborted ──▶ failed
#                  └── cancelled ──▶ failed
#
#   placing, moving, moved, confirming, reverting ── instance deleted ──▶ ended
MigrationState = Literal[
    "placing",
    "moving",
    # To be confirmed or reverted.
    "moved",
    "confirming",
    "confirmed",
    "reverting",
    "reverted",
    # The instance is as it was before.
    "failed",
    # The instance was deleted.
    "ended",
]

# An operation. While it is pending, its record names the next step.
#
#   begun ──▶ pending ── no step is left ──▶ done
#                └── the request cannot be satisfied ──▶ failed
OperationState = Literal["pending", "done", "failed"]
