"""RPC over oslo.messaging: clients, servers, and the drivers for RabbitMQ and for one process."""
