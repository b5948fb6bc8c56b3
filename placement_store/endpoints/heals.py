"""The methods of topic `placement` that bring the store into agreement with what others have on record."""

import logging

from moorage.bus.bus import serves
from moorage.messages import HealConsumers, Healed, Recounted, RecountInventories
from placement_store.claims import heal as heals
from placement_store.endpoints.base import StoreEndpoint
from placement_store.upkeep import recount

LOG = logging.getLogger(__name__)


class HealEndpoint(StoreEndpoint):
    """Serves `heal_consumers` and `recount_inventories`."""

    @serves(HealConsumers)
    def heal_consumers(self, message: HealConsumers) -> Healed:
        """Set what consumers hold to what is on record; see :func:`placement_store.claims.heal.heal`."""
        healed = self._once(message, lambda connection: heals.heal(connection, message, self._names))
        LOG.warning("Healed: consumers %s", ", ".join(sorted(message.seen)))
        return healed

    @serves(RecountInventories)
    def recount_inventories(self, message: RecountInventories) -> Recounted:
        """Count anew what is used of providers; see :func:`placement_store.upkeep.recount.recount`."""
        counted = self._once(message, lambda connection: recount.recount(connection, message.provider_uuids))
        LOG.warning(
            "Recounted: %d inventories corrected, %d allocations without a consumer removed",
            counted.inventories,
            counted.orphans,
        )
        return counted
