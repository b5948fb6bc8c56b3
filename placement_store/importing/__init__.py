"""Import the database of a Placement service: read it, compare it with the store, and write it into an empty store."""
