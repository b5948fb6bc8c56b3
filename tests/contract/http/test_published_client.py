"""Test that the `openstack` client with the plugin osc-placement prints the same for both servers."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Self
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.types import WSGIApplication

import pytest
from support.http.api import served
from support.http.differential.comparison import phrases_in
from support.http.differential.servers import published

from moorage import ids

#: Runs the client's entry point for each line of arguments, because starting Python two hundred times takes minutes.
_SESSION = """
import contextlib, io, json, sys
from openstackclient.shell import main
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(json.loads(line))
        except SystemExit as fault:
            status = fault.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
"""


class Client:
    """The command line of an operator with one Placement endpoint."""

    def __init__(self, url: str) -> None:
        self._common = ["--os-auth-type", "admin_token", "--os-endpoint", url, "--os-token", "admin"]

    def __enter__(self) -> Self:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _SESSION],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def send(self, version: str, words: str) -> None:
        line = json.dumps([*self._common, "--os-placement-api-version", version, *words.split()])
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def receive(self) -> tuple[int, str, str]:
        """Return the exit status, the output and the error output of the command that was sent."""
        assert self._process.stdout is not None
        status, out, err = json.loads(self._process.stdout.readline())
        return status, out, err


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def listening(application: WSGIApplication) -> Iterator[str]:
    """Serve an application in a thread; return its URL."""
    with make_server("127.0.0.1", 0, application, handler_class=_Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Client]]:
    """A client of our server and a client of the published Placement."""
    folder = tmp_path_factory.mktemp("client")
    with ExitStack() as begun:
        ours = begun.enter_context(
            served(f"sqlite:///{folder}/main.sqlite", folder / "log", "--workers", "1", "--threads", "2")
        )
        theirs = begun.enter_context(listening(begun.enter_context(published(folder)).application))
        yield begun.enter_context(Client(ours.url)), begun.enter_context(Client(theirs))


#: Uuids by their placeholders.
UUIDS = {
    f"<{name}>": ids.derived("client", name)
    for name in ("host", "other", "old", "gpu", "pool", "vm1", "vm2", "project", "user", "rack", "nobody")
}

#: The arguments of each command; a line with a version sets the version of the commands after it.
SCRIPT = """
1.39
resource provider list
resource provider create host1 --uuid <host>
resource provider create host1
resource provider create other --uuid <host>
resource provider create gpu --uuid <gpu> --parent-provider <nobody>
resource provider create gpu --uuid <gpu> --parent-provider <host>
resource provider create other --uuid <other>
resource provider create pool --uuid <pool>
resource provider set <gpu> --name gpu0
resource provider set <gpu> --name host1
resource provider set <nobody> --name x
resource provider set <host> --name host1 --parent-provider <gpu>
resource provider show <host>
resource provider show <gpu> -f json
resource provider show <nobody>
resource provider show no-uuid
resource provider list --in-tree <gpu>
resource provider list --name pool
resource provider list --uuid <other>
resource provider list --in-tree <nobody>
resource class list
resource class create CUSTOM_SLOT
resource class create SLOT
resource class create CUSTOM_lower
resource class set CUSTOM_SLOT
resource class set CUSTOM_OTHER
resource class show CUSTOM_SLOT
resource class show CUSTOM_NOTHING
resource class delete CUSTOM_OTHER
resource class delete CUSTOM_OTHER
resource class delete VCPU
resource provider inventory set <host> --resource VCPU=8 --resource VCPU:allocation_ratio=2.0 --resource MEMORY_MB=4096
resource provider inventory set <other> --resource VCPU=4 --resource MEMORY_MB=2048 --resource DISK_GB=50
resource provider inventory set <gpu> --resource CUSTOM_SLOT=2
resource provider inventory set <gpu> --resource CUSTOM_NOTHING=2
resource provider inventory set <gpu> --resource VCPU:total=none
resource provider inventory set <nobody> --resource VCPU=1
resource provider inventory class set <gpu> CUSTOM_SLOT --total 4 --max_unit 2
resource provider inventory class set <gpu> CUSTOM_SLOT --total 0
resource provider inventory set <pool> --resource DISK_GB=1000
resource provider inventory set <host> --resource MEMORY_MB:reserved=512 --amend
resource provider inventory set <host> --resource MEMORY_MB:reserved=512 --amend --dry-run
resource provider inventory list <host>
resource provider inventory list <nobody>
resource provider inventory show <host> VCPU
resource provider inventory show <host> DISK_GB
resource provider inventory show <nobody> VCPU
trait list
trait create CUSTOM_FAST
trait create CUSTOM_FAST
trait create FAST
trait create CUSTOM_UNUSED
trait show CUSTOM_FAST
trait show CUSTOM_NOTHING
resource provider trait set <gpu> --trait CUSTOM_FAST
resource provider trait set <pool> --trait MISC_SHARES_VIA_AGGREGATE
resource provider trait set <host> --trait CUSTOM_NOTHING
resource provider trait set <nobody> --trait CUSTOM_FAST
resource provider trait list <gpu>
resource provider trait list <nobody>
trait list --associated
trait list --name startswith:CUSTOM
trait delete CUSTOM_FAST
trait delete CUSTOM_UNUSED
trait delete CUSTOM_UNUSED
trait delete MISC_SHARES_VIA_AGGREGATE
resource provider aggregate set <host> --aggregate <rack> --generation 2
resource provider aggregate set <pool> --aggregate <rack> --generation 2
resource provider aggregate set <other> --aggregate <rack> --generation 9
resource provider aggregate set <host> --aggregate <rack>
resource provider aggregate list <host>
resource provider aggregate list <nobody>
resource provider list --member-of <rack>
resource provider list --required CUSTOM_FAST
resource provider list --forbidden CUSTOM_FAST
resource provider list --required CUSTOM_NOTHING
resource provider list --resource VCPU=9
resource provider list --resource CUSTOM_NOTHING=9
allocation candidate list --resource VCPU=2 --resource MEMORY_MB=1024
allocation candidate list --resource VCPU=2 --resource MEMORY_MB=1024 --resource DISK_GB=20
allocation candidate list --resource VCPU=2 --forbidden CUSTOM_FAST -f json
allocation candidate list --resource VCPU=100
allocation candidate list --resource CUSTOM_NOTHING=1
allocation candidate list --group 1 --resource VCPU=1 --group 2 --resource CUSTOM_SLOT=1
allocation candidate list --group 1 --resource VCPU=1 --group 2 --resource CUSTOM_SLOT=1 --group-policy isolate
allocation candidate list --group 1 --resource VCPU=1 --group 2 --resource CUSTOM_SLOT=1 --required CUSTOM_FAST \
--group-policy none
allocation candidate list --resource VCPU=1 --member-of <rack> --limit 1
allocation candidate list --resource VCPU=zwei
resource provider allocation show <vm1>
resource provider allocation set <vm1> --project-id <project> --user-id <user> --consumer-type INSTANCE \
--allocation rp=<host>,VCPU=2,MEMORY_MB=1024 --allocation rp=<pool>,DISK_GB=20 --allocation rp=<gpu>,CUSTOM_SLOT=1
resource provider allocation set <vm1> --project-id <project> --user-id <user> --consumer-type INSTANCE \
--allocation rp=<host>,VCPU=3,MEMORY_MB=1024 --allocation rp=<pool>,DISK_GB=20 --allocation rp=<gpu>,CUSTOM_SLOT=1
resource provider allocation set <vm2> --project-id <project> --user-id <user> --consumer-type INSTANCE \
--allocation rp=<host>,VCPU=99
resource provider allocation set <vm2> --project-id <project> --user-id <user> --consumer-type INSTANCE \
--allocation rp=<host>,VCPU=9
resource provider allocation set <vm2> --project-id <project> --user-id <user> --consumer-type INSTANCE \
--allocation rp=<gpu>,CUSTOM_SLOT=3
resource provider allocation set <vm2> --project-id <project> --user-id <user> --consumer-type INSTANCE \
--allocation rp=<host>,DISK_GB=1
resource provider allocation set <vm2> --project-id <project> --user-id <user> --consumer-type INSTANCE \
--allocation rp=<nobody>,VCPU=1
resource provider allocation set <vm2> --project-id <project> --user-id <user> --consumer-type lower \
--allocation rp=<host>,VCPU=1
resource provider allocation show <vm1>
resource provider allocation show <vm1> -f json
resource provider show <host> --allocations -f json
resource provider usage show <host>
resource provider usage show <nobody>
resource usage show <project>
resource usage show <project> --user-id <user>
resource usage show <project> --consumer-type INSTANCE
resource usage show <nobody>
resource provider inventory set <host> --resource VCPU=1
resource provider inventory delete <host> --resource-class VCPU
resource provider inventory delete <host>
resource provider inventory delete <other> --resource-class DISK_GB
resource provider inventory delete <other> --resource-class DISK_GB
resource provider delete <host>
resource provider delete <pool>
resource class delete CUSTOM_SLOT
resource provider allocation unset <vm1> --provider <gpu>
resource provider allocation unset <vm1> --resource-class DISK_GB
resource provider allocation unset <vm2> --provider <gpu>
resource provider allocation show <vm1>
resource provider allocation delete <vm1>
resource provider allocation delete <vm1>
resource provider delete <host>
resource provider inventory delete <gpu>
resource provider trait delete <gpu>
resource provider delete <gpu>
resource provider delete <gpu>
resource provider inventory delete <pool>
resource provider delete <pool>
resource provider list
1.0
resource provider create old --uuid <old>
resource provider show <old>
resource provider inventory set <old> --resource VCPU=8
resource provider inventory list <old>
resource provider allocation set <vm2> --allocation rp=<old>,VCPU=1
resource provider allocation show <vm2>
resource provider usage show <old>
resource provider list --in-tree <old>
resource class list
trait list
resource provider aggregate list <old>
allocation candidate list --resource VCPU=1
resource usage show <project>
resource provider allocation delete <vm2>
resource provider delete <old>
1.40
resource provider list
"""


def commands() -> Iterator[tuple[str, str]]:
    """Yield the commands of the script with their versions."""
    version = ""
    for line in SCRIPT.replace("\\\n", "").split("\n")[1:-1]:
        if re.fullmatch(r"\d\.\d+", line):
            version = line
        else:
            yield version, re.sub("<[a-z0-9]+>", lambda found: UUIDS[found[0]], line)


def comparable(status: int, out: str, err: str) -> object:
    """Return the output of a command to compare; of an error only the status and known phrases, as sentences differ."""
    refused = re.search(r"\(HTTP (\d+)\)", err)
    if refused:
        # If several classes are in use, a server may name one or all of them.
        return status, out, refused[1], [re.sub(r"for '[A-Z_, ]+'", "", phrase) for phrase in phrases_in(err)]
    # Candidates, and the classes in them, may come in any order, so their numbers are removed.
    unnumbered = re.sub(r'^\| +\d+ +\||"#": \d+,', "", out, flags=re.MULTILINE)
    return status, sorted(sorted(re.split(r'[\s,{}"]+', line)) for line in unnumbered.splitlines()), err


def test_each_command_prints_the_same_for_both_servers(clients: tuple[Client, Client]) -> None:
    script = list(commands())
    assert len(script) >= 100
    succeeded, different = 0, []
    for version, words in script:
        for client in clients:
            client.send(version, words)
        ours, theirs = (client.receive() for client in clients)
        succeeded += theirs[0] == 0
        if comparable(*ours) != comparable(*theirs):
            different.append(f"{version} {words}\n  ours: {ours}\n  Placement's: {theirs}")
    assert not different, "\n".join(different)
    assert succeeded > 60
