"""The store: resource providers, their inventories, and the allocations of consumers, in MySQL.

A message goes to the :mod:`placement_store.dispatcher`, which runs the one function of `claims/`, `providers/`,
`reshapes/` ... that serves it, in one transaction with its stored answer. Whatever changes allocations is written by
:mod:`placement_store.allocations.write`: it locks, compares generations, checks capacity, and writes.
"""
