"""Request filters: each narrows a request by its flavor, its image or the cloud's aggregates."""
