"""Request filters: each makes a request narrower, by what its flavor, its image and the cloud's aggregates say."""
