"""Order numbers fence off late orders: a cell refuses an order after a later one was carried out, or after a refusal.

The super conductor raises the number in the transaction that records an order. So if a caller has stopped waiting for
an order, and the order arrives after a later one was carried out, it changes nothing.
"""

from sqlalchemy import Connection, Integer, case, cast

from conductor.cell.records.instances import CellInstance, CellRecords
from conductor.schema import cell_instances
from moorage import errors
from moorage.db.columns import now
from moorage.messages.basis import NumberedOrder
from moorage.messages.wire import R


def lock(records: CellRecords, connection: Connection, message: NumberedOrder[R]) -> CellInstance:
    """Lock the instance of an order, check the order's number and record it.

    :raises InstanceNotFound: the instance is unknown here.
    :raises StaleOrder: a later order was carried out before, or this one was refused before.
    """
    instance = records.lock_known(connection, message.instance_uuid)
    take(records, connection, instance, message)
    return instance


def take(records: CellRecords, connection: Connection, instance: CellInstance, message: NumberedOrder[R]) -> None:
    """Check an order's number and record it, in the transaction that carries the order out; the instance is locked.

    An order without a number comes from an older release and is not checked.

    :raises StaleOrder: a later order was carried out before, or this one was refused before.
    """
    number = message.order_number
    if number is None:
        return
    if number < instance.order_number:
        raise _stale(instance, f"it is order {number}, and order {instance.order_number} has been carried out")
    if instance.order_number < number <= instance.refused_order_number:
        refused = f"order {instance.refused_order_number} has been refused"
        raise _stale(instance, f"it is order {number}, and {refused}: to order it again, use a new request id")
    if number > instance.order_number:
        records.change(connection, instance.uuid, order_number=number)


def refuse(connection: Connection, cell_uuid: str, message: NumberedOrder[R]) -> None:
    """Record that an order was refused: the caller gets an error, so a second copy must not be carried out later."""
    columns = cell_instances.c
    connection.execute(
        cell_instances.update()
        .where(
            columns.cell_uuid == cell_uuid,
            columns.uuid == message.instance_uuid,
            columns.order_number < message.order_number,
            columns.refused_order_number < message.order_number,
        )
        .values(refused_order_number=message.order_number)
    )


def next_guest_order(records: CellRecords, connection: Connection, instance: CellInstance) -> None:
    """Raise the number of the last order to a guest of an instance, for a new order; the instance is locked.

    The agent refuses an order with a lower number than the last one. A number is at least the time: so after the
    cell's database was restored from a backup, orders do not count as older than those of the lost history.
    """
    columns = cell_instances.c
    # Seconds would exceed the column in 2038. Nobody orders something of one guest every ten seconds for long.
    following, time = columns.guest_order_number + 1, cast(now() / 10, Integer)
    connection.execute(
        cell_instances.update()
        .where(columns.cell_uuid == records.cell_uuid, columns.uuid == instance.uuid)
        .values(guest_order_number=case((following > time, following), else_=time), updated_at=now())
    )


def _stale(instance: CellInstance, reason: str) -> errors.StaleOrder:
    return errors.StaleOrder(instance_uuid=instance.uuid, reason=reason)
