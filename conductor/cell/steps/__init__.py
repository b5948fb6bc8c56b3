"""The steps of a cell's operations, one module for each kind or part of one."""
