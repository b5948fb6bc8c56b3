"""Server groups: their rows, and the rules that claims must keep."""
