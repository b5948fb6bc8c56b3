"""The messages of all topics.

A message class has its topic, its method, the version that introduced it and, as type argument, the type of its answer.
Senders and servers share the class, so that a message has one shape, and there is no separate list of methods.
"""

from moorage.messages.basis import *
from moorage.messages.cell import *
from moorage.messages.cell_holds import *
from moorage.messages.cell_operations import *
from moorage.messages.compute import *
from moorage.messages.conductor import *
from moorage.messages.operator import *
from moorage.messages.placement import *
from moorage.messages.providers import *
from moorage.messages.scheduler import *
