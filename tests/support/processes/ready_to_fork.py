"""Imported last by the process that others are forked from: does once what each of them would do anew at its start."""

import gc

from moorage.cli import shell
from moorage.messages import wire

shell._entry_points("moorage.cli")
wire.prepare()
# What is there by now stays: the processes' collections of garbage need neither look at it nor copy its pages.
gc.freeze()
