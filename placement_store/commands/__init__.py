"""The sub-commands of `moorage` for the placement store: their arguments and their output."""
