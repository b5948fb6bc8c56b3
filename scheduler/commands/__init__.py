"""The commands of operators that the scheduler carries out."""
