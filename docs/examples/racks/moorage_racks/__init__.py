"""Racks: servers go to the racks that are asked for, rather to those with power to spare."""
