"""All deliberate breaks, by name, in the order of the promises."""

from support.breaks.in_answers import IN_ANSWERS
from support.breaks.in_failures import IN_FAILURES
from support.breaks.in_the_store import IN_THE_STORE

BREAKS = {one.name: one for one in sorted((*IN_THE_STORE, *IN_ANSWERS, *IN_FAILURES), key=lambda one: one.promise)}
