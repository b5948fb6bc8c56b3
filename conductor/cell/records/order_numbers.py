"""The numbers of orders about an instance: a cell carries out none that comes after a later one, or was refused before.

The super conductor raises the number in the transaction that puts an order on record. So an order that its caller has
given up, and that arrives only after another one was carried out, changes nothing.
"""

from sqlalchemy import Connection

from conductor.cell.records.instances import CellInstance, CellRecords
from conductor.schema import cell_instances
from moorage import errors
from moorage.messages.basis import NumberedOrder
from moorage.messages.wire import R


def take(records: CellRecords, connection: Connection, instance: CellInstance, message: NumberedOrder[R]) -> None:
    """Record that an order about an instance, which is locked, is carried out in this transaction.

    :raises StaleOrder: it comes after a later one, or it was refused before.
    """
    number = message.order_number
    if number is None:
        return
    if number < instance.order_number:
        raise _stale(instance, f"it is order {number}, and order {instance.order_number} has been carried out")
    if instance.order_number < number <= instance.refused_order_number:
        raise _stale(instance, f"it is order {number}, and order {instance.refused_order_number} has been refused")
    if number > instance.order_number:
        records.change(connection, instance.uuid, order_number=number)


def refuse(connection: Connection, cell_uuid: str, message: NumberedOrder[R]) -> None:
    """Record that an order was refused: its caller hears so, and a second copy of it must not be carried out later."""
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
    """Raise the number of orders to guests of an instance, which is locked: one is written down here."""
    records.change(connection, instance.uuid, guest_order_number=instance.guest_order_number + 1)


def _stale(instance: CellInstance, reason: str) -> errors.StaleOrder:
    return errors.StaleOrder(instance_uuid=instance.uuid, reason=reason)
