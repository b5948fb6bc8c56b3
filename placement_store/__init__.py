"""The store: resource providers, their inventories, and the allocations of consumers, in MySQL.

For each message, :mod:`placement_store.dispatcher` runs the one function of `claims/`, `providers/`, `reshapes/` ...
that serves it, in the transaction that also stores the answer. Every change of allocations goes through
:mod:`placement_store.allocations.write`, which locks rows, compares generations, checks capacity, and writes.
"""
