"""The schedulers' store, on SQLite and on MariaDB."""

from support.scheduler.rig import rig_on_each_store

rig = rig_on_each_store
