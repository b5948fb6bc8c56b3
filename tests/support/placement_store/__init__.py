"""The store under test: messages, providers, groups, moves, and the model that the store is compared with."""
