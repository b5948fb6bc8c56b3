"""Imported by the fork server: does once what otherwise each forked process would do at its start."""

import gc
import os
import sys
from importlib import import_module, metadata

from stevedore import ExtensionManager

from moorage.cli import shell
from moorage.messages import wire

#: Modules that services and commands import only when they need them, and the libraries of bus and databases.
_LATE = (
    "alembic.command",
    "alembic.config",
    "alembic.migration",
    "compute.commands",
    "conductor.commands.run",
    "kombu.transport.pyamqp",
    "moorage.service.listener",
    "moorage.service.probes",
    "oslo_messaging._drivers.impl_rabbit",
    "placement_store.commands.cells",
    "placement_store.commands.claims",
    "placement_store.commands.db_upgrade",
    "placement_store.service",
    "scheduler.commands.hosts",
    "scheduler.commands.run",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.sqlite",
    "support.processes.forked_process",
)
_PLUGINS = (
    "moorage.filters", "moorage.weighers", "moorage.request_filters", "moorage.drivers", "moorage.schemas",
    "cliff.formatter.list", "cliff.formatter.show",
)  # fmt: skip

# As in each process, because stevedore's cache depends on the path.
sys.path[:] = os.environ.pop("PYTHONPATH").split(os.pathsep)
for name in (*_LATE, *(plugin.module for group in _PLUGINS for plugin in metadata.entry_points(group=group))):
    import_module(name)
shell._entry_points("moorage.cli")
# This reads the entry points of all packages, and caches them.
ExtensionManager("moorage.cli.hooks")
wire.prepare()
# These objects stay for ever: garbage collections in the processes must neither visit them nor copy their pages.
gc.freeze()
