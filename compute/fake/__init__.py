"""The fake driver: hosts and guests that are rows of a file, with the faults and delays that its options ask for."""
