"""What every table of the store shares: names as numbers, bulk statements, retries and the change feed."""
