"""Operations as records: steps, leases, retries and the worker threads that carry them out."""
