"""The commands of operators that the conductors carry out."""
