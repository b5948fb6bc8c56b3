"""The agent of hosts: reports their resources, and carries out the builds and orders of their cell conductor."""
