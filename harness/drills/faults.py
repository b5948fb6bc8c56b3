"""The faults of drills: each harms one part of a cloud of processes, reports that, and repairs it."""

import random
from collections.abc import Callable

from harness.drills.cloud import DrillCloud
from harness.drills.report import Say
from harness.drills.workload import Workload

#: Harms the cloud once, and repairs it.
Fault = Callable[[DrillCloud, Workload, random.Random, Say], None]

#: The kinds of proxies, and the names of their servers.
_KINDS = {"database": "the database", "broker": "the broker"}


def kill_process(cloud: DrillCloud, workload: Workload, chance: random.Random, say: Say) -> None:
    """Kill a process, and start it again."""
    role, seconds = chance.choice(sorted(cloud.roles)), chance.uniform(0.0, 3.0)
    say(f"{role} is killed, and started again after {seconds:.1f} s")
    cloud.kill(role)
    workload.wait(seconds)
    cloud.start_role(role)


def delay_messages(cloud: DrillCloud, workload: Workload, chance: random.Random, say: Say) -> None:
    """Pause a process that has received messages, and cut another one's connections to the broker.

    Messages that the paused process has taken are carried out late, after callers have timed out and repeated them.
    Messages that the other process has not acknowledged are delivered a second time, and answers to it are lost.
    """
    paused, cut = chance.sample(sorted(cloud.roles), 2)
    seconds = chance.uniform(1.0, 8.0)
    say(f"{paused} is paused for {seconds:.1f} s, and {cut} loses its connections to the broker")
    cloud.pause(paused)
    try:
        for proxy in cloud.proxies[cut]["broker"]:
            proxy.refuse()
            proxy.resume()
        workload.wait(seconds)
    finally:
        cloud.resume(paused)


def silence_connections(cloud: DrillCloud, workload: Workload, chance: random.Random, say: Say) -> None:
    """Lose all data in both directions on the open connections of a process; new connections work."""
    role, kind = chance.choice(sorted(cloud.roles)), chance.choice(sorted(_KINDS))
    say(f"the connections of {role} to {_KINDS[kind]} say nothing any more")
    for proxy in cloud.proxies[role][kind]:
        proxy.go_silent()
    workload.wait(chance.uniform(1.0, 10.0))


def partition(cloud: DrillCloud, workload: Workload, chance: random.Random, say: Say) -> None:
    """Cut some processes off from database and broker for a time: all packets are lost, and no side gets an error."""
    cut = chance.choice(
        [["scheduler1"], ["conductor1"], ["conductor-cell1", "agent-cell1"], ["agent-cell2"], ["conductor-cell2"]]
    )
    seconds = chance.uniform(3.0, 20.0)
    say(f"{' and '.join(cut)} are cut off for {seconds:.1f} s")
    proxies = [proxy for role in cut for each in cloud.proxies[role].values() for proxy in each]
    for proxy in proxies:
        proxy.go_silent(new_too=True)
    try:
        workload.wait(seconds)
    finally:
        for proxy in proxies:
            proxy.resume()


def kill_server(cloud: DrillCloud, workload: Workload, chance: random.Random, say: Say) -> None:
    """Kill the database or the broker, or a node of its cluster, and start it again."""
    server = chance.choice(list(cloud.servers.programs))
    seconds = chance.uniform(0.5, 3.0)
    say(f"{server.package} is killed, and started again after {seconds:.1f} s")
    server.kill()
    workload.wait(seconds)
    server.start()


def reshape(cloud: DrillCloud, _workload: Workload, chance: random.Random, say: Say) -> None:
    """Restart an agent with another layout of its hosts; allocations move together with their inventories."""
    agent = chance.choice([role for role in sorted(cloud.roles) if role.startswith("agent")])
    layout = "flat" if cloud.roles[agent].settings["fake_driver"]["layout"] == "nested" else "nested"
    say(f"the hosts of {agent} become {layout}")
    cloud.stop(agent)
    cloud.start_role(agent, layout=layout)
