"""All errors of Moorage in one class tree, with a module for each party that must act.

The first paragraph of a class's docstring is its message to the operator, with the error's data filled in. Data is
keyword-only and JSON-safe, so that an error crosses the bus as its own class. A released ``code`` never changes.
"""

from moorage.errors.away import *
from moorage.errors.basis import *
from moorage.errors.caller import *
from moorage.errors.fault import *
from moorage.errors.installation import *
from moorage.errors.refused import *
from moorage.errors.stale import *
