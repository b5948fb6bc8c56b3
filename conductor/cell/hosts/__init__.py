"""The cell's hosts: reports, lives, loads, and what is forwarded to the schedulers."""
