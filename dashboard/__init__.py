"""A read-only web page of the cloud: its hosts, its requests, and the operations under way."""
