"""The command `moorage scheduler`."""

import argparse

from moorage import logs
from moorage.cli.serving import Serving, name_argument
from moorage.service import workers
from scheduler.service import SchedulerService


class Scheduler(Serving):
    """Run a scheduler, with the placement role unless `[scheduler] serve_placement` is false.

    You can start any number of schedulers, also on one machine: `[scheduler] workers` starts several at once and adds a
    number to the name of each. On SIGTERM, a scheduler answers the requests that it has taken, and then stops.
    """

    arguments = (name_argument("scheduler"),)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Serve until a signal arrives."""
        logs.setup(self.conf, f"scheduler.{parsed_args.name}")
        worker = workers.fork(parsed_args.name, self.conf.scheduler.workers)
        if worker.name != parsed_args.name:
            logs.setup(self.conf, f"scheduler.{worker.name}")
        service = SchedulerService(self.conf, worker.name)
        self.serve(service, parsed_args, signals=worker.signals, number=worker.number)
