"""The agent of hosts: reports what they have, and builds what their conductor sends."""
