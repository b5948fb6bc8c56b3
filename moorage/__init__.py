"""The ground floor: words, values, messages, errors, the bus and the database that every other folder stands on."""
