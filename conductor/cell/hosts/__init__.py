"""The cell's hosts: reports, lives, loads, and the data that is forwarded to the schedulers."""
