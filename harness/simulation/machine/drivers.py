"""A driver with faults of its hosts: all that it does on one of them fails, hangs, is late or raises an error."""

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import replace

from oslo_config import cfg

from compute.driver import GuestOrder, GuestSpec
from compute.fake.behaviour import Behaviour
from compute.fake.driver import FakeDriver
from compute.fake.guest_file import Action
from moorage.model import Image

_NONE = ("", 0.0)
_REASON = "the host is faulty"


class FaultyDriver(FakeDriver):
    """The fake driver, with faults that come and go.

    :param faults: the present fault of each host, with the seconds by which it is late: ``fails``, ``hangs``,
        ``is late``, ``raises`` or ``refuses``. An order to stop or to start a guest never hangs: nothing limits it.
    :param images: receives the image of each guest, by attempt.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        agent: str,
        cell_name: str,
        faults: Mapping[str, tuple[str, float]],
        images: MutableMapping[str, str | None],
    ) -> None:
        super().__init__(conf, agent, cell_name)
        self._faults = faults
        self._images = images

    def behaviour(self, host: str, guest: GuestSpec) -> Behaviour:
        """Return the behaviour of a host for a guest.

        :raises RuntimeError: that is the fault of the host.
        """
        normal = super().behaviour(host, guest)
        if self._fault(host)[0] == "refuses":
            return replace(normal, refusal=_REASON)
        return self._faulty(host, normal)

    def order_behaviour(self, host: str, order: GuestOrder, action: Action) -> Behaviour:
        """Return the behaviour of a host for an order.

        :raises RuntimeError: that is the fault of the host.
        """
        normal = super().order_behaviour(host, order, action)
        return normal if self._fault(host)[0] == "hangs" and action != "rebuild" else self._faulty(host, normal)

    def spawn(self, host: str, guest: GuestSpec) -> None:
        """Make a guest; one that this attempt has made before keeps its image, of which it may have another by now."""
        self._images.setdefault(guest.attempt_id, guest.request_spec.image.id)
        super().spawn(host, guest)

    def rebuild_guest(self, host: str, order: GuestOrder, image: Image) -> None:
        """Rebuild a guest, which then has another image."""
        super().rebuild_guest(host, order, image)
        self._images[order.attempt_id] = image.id

    def destroy(self, host: str, instance_uuid: str, attempt_id: str, claim_id: str) -> None:
        """Remove the guest of an attempt.

        :raises RuntimeError: that is the fault of the host.
        """
        self._faulty(host, Behaviour())
        super().destroy(host, instance_uuid, attempt_id, claim_id)

    def _fault(self, host: str) -> tuple[str, float]:
        return self._faults.get(host, _NONE)

    def _faulty(self, host: str, normal: Behaviour) -> Behaviour:
        kind, seconds = self._fault(host)
        if kind == "raises":
            raise RuntimeError(_REASON)
        if kind == "fails":
            return replace(normal, fault=_REASON)
        if kind == "hangs":
            return replace(normal, seconds=math.inf)
        return replace(normal, seconds=seconds, stubborn=True) if kind == "is late" else normal
