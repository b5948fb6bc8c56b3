"""Benchmark of decisions with their claims over RPC, as called by a conductor."""

import threading
import time
from dataclasses import dataclass

import numpy as np

from harness.audit import judge
from harness.cloud import RunningCloud
from moorage import errors, ids
from moorage.messages import SelectDestinations
from moorage.model import Flavor, RequestSpec

SPEC = RequestSpec(project_id="bench", user_id="bench", flavor=Flavor(vcpus=1, memory_mb=512, root_gb=1))


@dataclass(frozen=True)
class SelectResult:
    """The result of one run; the field names are those of `moorage bench select -f json`."""

    hosts: int
    clients: int
    per_request: int
    claims_per_s: float
    p50_ms: float
    p99_ms: float
    overcommitted: int
    leaked: int


class _SelectClient:
    """A client thread that repeats requests for ``per_request`` new instances."""

    def __init__(self, cloud: RunningCloud, requests: int, per_request: int) -> None:
        self._client = cloud.client("scheduler")
        self._requests = requests
        self._per_request = per_request
        self.seconds: list[float] = []
        self.claimed: list[str] = []
        self.refused: list[errors.MoorageError] = []

    def run(self) -> None:
        """Send the requests; a refusal ends this client."""
        for _ in range(self._requests):
            uuids = tuple(ids.fresh() for _ in range(self._per_request))
            message = SelectDestinations(
                request_spec=SPEC, instance_uuids=uuids, num_alternates=2, request_id=ids.fresh()
            )
            began = time.perf_counter()
            try:
                self._client.call(message)
            except errors.MoorageError as fault:
                self.refused.append(fault)
                return
            self.seconds.append(time.perf_counter() - began)
            self.claimed.extend(uuids)


def select(cloud: RunningCloud, *, clients: int, per_request: int, requests: int) -> SelectResult:
    """Measure ``requests`` calls, divided among ``clients`` threads, after a tenth as many that are not counted.

    :raises MoorageError: a request was refused; the cloud is too small for the measurement.
    """
    warmed = _SelectClient(cloud, max(1, requests // 10), per_request)
    warmed.run()
    asking = [_SelectClient(cloud, max(1, requests // clients), per_request) for _ in range(clients)]
    threads = [threading.Thread(target=client.run) for client in asking]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lasted = time.perf_counter() - began
    for client in [warmed, *asking]:
        if client.refused:
            raise client.refused[0]
    seconds = np.array([one for client in asking for one in client.seconds])
    claimed = [uuid for client in [warmed, *asking] for uuid in client.claimed]
    verdict = judge(cloud.database, claimed)
    return SelectResult(
        hosts=cloud.plan.hosts,
        clients=clients,
        per_request=per_request,
        claims_per_s=round((len(claimed) - len(warmed.claimed)) / lasted, 1),
        p50_ms=round(float(np.percentile(seconds, 50)) * 1000, 3),
        p99_ms=round(float(np.percentile(seconds, 99)) * 1000, 3),
        overcommitted=verdict.overcommitted,
        leaked=verdict.leaked,
    )
