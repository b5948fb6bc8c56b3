"""The store: resource providers, their inventories, and the allocations of consumers, in MySQL.

A request passes an endpoint (`endpoints/`, or `http/`), which runs one function of `claims/`, `providers/` or
`reshapes/` in one transaction with the request's stored answer. Whatever changes allocations is written by
:mod:`placement_store.allocations.write`: it locks, compares generations, checks capacity, and writes.
"""
