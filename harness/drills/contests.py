"""Drills in which many clients request the same room at once, on a cloud without faults."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from harness.arguments import Servers
from harness.bench import select
from harness.bench.cloud import is_embedded, running
from harness.bench.load import Load
from harness.bench.requests import SPEC, Request
from harness.bench.store import ORDINARY
from harness.cloud import CloudSpec
from harness.drills.report import Arguments, Report, Say
from moorage import errors, ids
from moorage.bus.bus import Client
from moorage.messages import DeleteAllocations, SelectDestinations

#: The number of instances that fit on the host of the race, and the number that clients request at once.
_ROOM, _RACERS = 5, 16
#: The number of hosts for which claims compete, the number of schedulers, and how full the hosts are in percent.
_HOSTS, _SCHEDULERS, _OCCUPANCY = 50, 4, 80.0


def race(servers: Servers, given: Arguments, say: Say) -> Report:
    """Request the last five places of a host sixteen times at once, in each round: exactly five must be claimed."""
    room = {"vcpus": _ROOM, "memory_mb": 512 * _ROOM, "disk_gb": _ROOM}
    spec = CloudSpec(hosts=1, schedulers=2, seed=given.seed, settings={"fake_driver": room})
    answers, findings, rounds = Counter[str](), list[str](), 0
    say("starting a host with room for five, and two schedulers")
    with running(servers, spec) as cloud, ThreadPoolExecutor(_RACERS) as threads:
        scheduler, placement = cloud.client("scheduler"), cloud.client("placement")
        begin = threading.Barrier(_RACERS)

        def ask(uuid: str) -> str:
            begin.wait()
            return _asked(scheduler, uuid)

        end = time.monotonic() + given.seconds
        while time.monotonic() < end and not findings:
            rounds += 1
            uuids = [ids.derived("race", given.seed, rounds, number) for number in range(_RACERS)]
            came = dict(zip(uuids, threads.map(ask, uuids), strict=True))
            answers.update(came.values())
            claimed = [uuid for uuid, answer in came.items() if answer == "claimed"]
            if len(claimed) != _ROOM:
                findings.append(
                    f"round {rounds}: {len(claimed)} of {_ROOM} places were claimed: {Counter(came.values())}"
                )
            verdict = cloud.judge(claimed)
            findings += [] if verdict.clean else [f"round {rounds}: {verdict}"]
            for uuid in claimed:
                placement.call(DeleteAllocations(consumer_uuid=uuid, request_id=ids.derived(uuid, "delete")))
            if rounds % 50 == 0:
                say(f"{rounds} rounds")
    return Report({"rounds": rounds, "answers": dict(answers)}, findings)


def _asked(scheduler: Client, uuid: str) -> str:
    """Request a host for an instance, and return the outcome: `claimed`, or the name of the error."""
    request_id = ids.derived(uuid, "select")
    message = SelectDestinations(request_spec=SPEC, instance_uuids=(uuid,), num_alternates=0, request_id=request_id)
    try:
        scheduler.call(message)
    except errors.MoorageError as fault:
        return type(fault).__name__
    return "claimed"


def conflict(servers: Servers, given: Arguments, say: Say) -> Report:
    """Let four schedulers place on the same hosts, 80 % full: conflicts are counted, and nothing is over-committed."""
    spec = CloudSpec(hosts=_HOSTS, schedulers=_SCHEDULERS, seed=given.seed, settings={"fake_driver": ORDINARY})
    processes = 0 if is_embedded(servers) else min(4, given.clients)
    say(f"starting {_HOSTS} hosts and {_SCHEDULERS} schedulers")
    with running(servers, spec) as cloud:
        filled = select.prepare(cloud, _OCCUPANCY)
        say(f"claiming for {given.seconds:g} s")
        measured = select.select(
            cloud, Request(alternates=0), Load(given.clients, processes, given.seconds, warm_up=0.0)
        )
        verdict = cloud.judge([*filled, *measured.created])
    figures = {"claims": measured.items, "conflicts": measured.conflicts, "refused": dict(measured.refused)}
    return Report(figures, [] if verdict.clean else [str(verdict)])
