"""A page to look at the cloud: its hosts, what is asked of it, what is under way. Reads, and changes nothing."""
