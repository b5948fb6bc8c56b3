"""RabbitMQ: the driver, its connections and batches; calls with the AMQP library alone; checks of the broker."""
