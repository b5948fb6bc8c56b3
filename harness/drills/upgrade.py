"""The drill of an upgrade: services of another release are replaced by this one, and back, while clients work."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

from harness.arguments import Servers
from harness.drills.cloud import DrillCloud, unlogged
from harness.drills.report import Arguments, Report, Say
from harness.drills.workload import Workload
from moorage import errors

#: The kinds of services in the order of an upgrade (docs/upgrading.md): those that are called come first.
_ORDER = ("scheduler", "conductor", "conductor-cell", "agent")
#: Prints where a release is installed.
_WHERE = "import moorage.cli.shell; print(moorage.cli.shell.__file__)"


def run(servers: Servers, given: Arguments, say: Say) -> Report:
    """Replace the services of a cloud one after the other, and back, then check the cloud.

    The tables are this release's from the beginning, as `moorage db upgrade` comes first in an upgrade.

    :raises ConfigurationError: no other release is given.
    """
    former = _checked(given.former)
    chance, replaced = random.Random(given.seed), 0
    say("starting ten processes of the former release")
    cloud = DrillCloud(servers, given.seed, proxied=False)
    cloud.python = former
    with unlogged(), cloud:
        forward = sorted(cloud.roles, key=_place)
        steps = [*((role, sys.executable) for role in forward), *((role, former) for role in reversed(forward))]
        with Workload(cloud, given.clients, given.seed, moves=True) as workload:
            for role, cloud.python in steps:
                if not workload.wait(given.seconds / (len(steps) + 1)):
                    break
                end = chance.choice((cloud.stop, cloud.kill))
                release = "the former release" if cloud.python == former else "this release"
                say(f"{role} is {'stopped' if end == cloud.stop else 'killed'}, and started with {release}")
                end(role)
                cloud.start_role(role)
                replaced += 1
            workload.wait(given.seconds / (len(steps) + 1))
            say("waiting for the orders under way")
        return workload.judged({"replaced": replaced}, [], say)


def _place(role: str) -> tuple[int, str]:
    """Return the place of a service in an upgrade."""
    return max(place for place, kind in enumerate(_ORDER) if role.startswith(kind)), role


def _checked(former: str | None) -> str:
    """Return the absolute path of the interpreter of the other release: processes run in folders of their own.

    :raises ConfigurationError: none is given, it has no release, or it has this one.
    """
    if former is None:
        raise errors.ConfigurationError(reason="upgrade needs another release: give --former")
    # Not resolved: a link leads out of its environment.
    python = str(Path(shutil.which(former) or former).absolute())
    try:
        found = [
            subprocess.run([each, "-c", _WHERE], capture_output=True, text=True, check=True, cwd="/").stdout
            for each in (python, sys.executable)
        ]
    except (OSError, subprocess.CalledProcessError) as fault:
        reason = (getattr(fault, "stderr", "") or str(fault)).strip().splitlines()[-1]
        raise errors.ConfigurationError(reason=f"--former {former} has no release of Moorage: {reason}") from fault
    if found[0] == found[1]:
        raise errors.ConfigurationError(reason=f"--former {former} has this release, and not another one")
    return python
