"""The sub-commands of `moorage` that are about the store: what is typed, and what is shown."""
