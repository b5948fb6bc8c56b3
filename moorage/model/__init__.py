"""The shared data model: frozen, JSON-safe values used by all packages and on the wire."""

from moorage.model.allocations import *
from moorage.model.basis import *
from moorage.model.explanation import *
from moorage.model.hosts import *
from moorage.model.instances import *
from moorage.model.moves import *
from moorage.model.recorded import *
from moorage.model.request_spec import *
from moorage.model.reshapes import *
from moorage.model.selection import *
