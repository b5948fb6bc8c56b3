"""The view of all hosts that decisions are made on: one column for each figure, kept up by the change feed."""
