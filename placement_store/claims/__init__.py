"""Claim allocations; accept, swap, move, release and heal claims; put allocations without a claim."""
