"""The fake driver: hosts and guests that are rows of a file, with configurable faults and delays."""
