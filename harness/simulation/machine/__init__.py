"""The machine of the simulation: it replaces threads, clocks, locks, the network and the files of databases."""
