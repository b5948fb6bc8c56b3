"""Resource providers: rows, trees, inventories, traits, aggregates and reports."""
