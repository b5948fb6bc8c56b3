"""The states of instances, attempts, migrations and operations, each with its state machine.

The strings are stored and travel in messages: they never change, and a field of a message that has one is a ``str``, so
that an older release can read the state of a newer one.
"""

from typing import Literal

# An instance. Its cell keeps the state; the super conductor keeps `building` until then, `error` for one that no cell
# has, `deleting` and `deleted`.
#
#   build ──▶ building ──── guest runs ────▶ active
#                 └─── every host failed ───▶ error
#
#   active ──── rebuild ────▶ rebuilding ── guest runs ──▶ active
#   error ───── rebuild ────▶     └───────── refused ────▶ error
#
#   active ──── migrate, resize, evacuate ────▶ moving ── arrived ──▶ moved ── confirmed ──▶ active
#   error ───── evacuate ───────────────────▶     │                     └───── reverted ───▶ what it was before
#                                                 └── cancelled, or every host failed ──────▶ what it was before
#               (failed or reverted, and the guest on the source cannot be started ─────────▶ error)
#
#   active ──── shelve ────▶ shelving ── released ──▶ shelved
#   shelved ─── unshelve ──▶ unshelving ── guest runs ──▶ active
#                                └── cancelled, or every host failed ──▶ shelved
#
#   any of these ── delete ──▶ deleting ── released ──▶ deleted
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

# An attempt: one try at building an instance, or at moving or unshelving it, on one host.
#
#   claim refused ──▶ skipped
#
#   claimed ──▶ starting ── claim accepted (first gate) ──▶ building ── guest runs (second gate) ──▶ active
#                   └─────────────── host failed, gave no answer, or the move was broken off ───────▶ failed
#                                                               (from `building` too)
#
#   active ── its host is the source of a move ──▶ held ── move confirmed ──▶ ended
#     ▲                                              │
#     └────────── move failed or reverted ───────────┘
#
#   active ── shelved, or its move was reverted ──▶ ended
#   starting, building, active, held ── instance deleted ──▶ ended
#
# One that is `failed`, `skipped` or `ended` passes no gate any more.
AttemptState = Literal[
    "starting",
    "building",
    "active",
    # Its guest is the source of a move that is under way, or waits to be confirmed or reverted: it is wanted.
    "held",
    "failed",
    # The store refused the claim, or the host was known to be down: nothing was sent to it.
    "skipped",
    "ended",
]

# A migration. Its cell keeps the state; the super conductor keeps `placing` and `moving`, and in the end the state that
# the migration ended in.
#
#   ordered ──▶ placing ── claimed ──▶ moving ── guest runs ──▶ moved ── confirm ──▶ confirming ──▶ confirmed
#                  │                     │ │                    │ ▲                      ▲
#                  │                     │ │             revert │ │ revert given up      │
#                  │                     │ │                    ▼ │                      │
#                  │                     │ │                  reverting ──▶ reverted     │
#                  │                     │ └── guest runs, of a live migration or an ────┘
#                  │                     │     evacuation: they confirm themselves
#                  └── cancelled ──▶ failed ◀── every host failed, or broken off
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

# An operation: while it is pending, its record names the step that is done next.
#
#   begun ──▶ pending ── no step is left ──▶ done
#                └── what was asked for cannot be had ──▶ failed
OperationState = Literal["pending", "done", "failed"]
