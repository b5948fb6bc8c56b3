"""What the simulation replaces: threads, clocks, locks, the network and the files of databases."""
