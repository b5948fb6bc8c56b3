"""The hosts on record: reports, loads, metadata, aggregates, deletion, and the sweep."""
