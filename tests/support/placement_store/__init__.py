"""The store under test: messages, providers, groups, moves, and the model that it is compared with."""
