"""Serve the methods of topic `placement` that reshape trees of providers."""

import logging

from sqlalchemy import Connection

from moorage.bus.bus import serves
from moorage.messages import Done, PlanReshape, Reshape, ReshapeByInstructions
from moorage.model import ReshapePlan
from placement_store.endpoints import StoreEndpoint
from placement_store.reshapes import instructed_reshape, reshape

LOG = logging.getLogger(__name__)


class ReshapeEndpoint(StoreEndpoint):
    """Serve reshapes, each in one transaction: all of it, or nothing."""

    @serves(Reshape)
    def reshape(self, message: Reshape) -> Done:
        """Replace inventories and allocations at once; see :func:`placement_store.reshapes.reshape.reshape`."""

        def work(connection: Connection) -> Done:
            reshape.reshape(connection, message, self._names)
            return Done()

        done = self._once(message, work)
        LOG.info("Reshaped: %d providers, %d consumers", len(message.inventories), len(message.allocations))
        return done

    @serves(ReshapeByInstructions)
    def reshape_by_instructions(self, message: ReshapeByInstructions) -> ReshapePlan:
        """Move inventories with their allocations to other providers of the tree.

        See :func:`placement_store.reshapes.instructed_reshape.carry_out`.
        """

        def work(connection: Connection) -> ReshapePlan:
            return instructed_reshape.carry_out(connection, message, self._names)

        done = self._once(message, work)
        consumers = {dealt.consumer_uuid for dealt in done.dealt}
        LOG.info(
            "Reshaped: inventories of %d providers, of which %d are new, and the allocations of %d consumers",
            len(done.inventories),
            len(done.created),
            len(consumers),
        )
        return done

    @serves(PlanReshape)
    def plan_reshape(self, message: PlanReshape) -> ReshapePlan:
        """Return the plan of such a request; see :func:`placement_store.reshapes.instructed_reshape.plan`."""
        return self._database.read(lambda connection: instructed_reshape.plan(connection, message, self._names))
