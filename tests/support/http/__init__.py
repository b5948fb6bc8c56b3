"""The Placement API over HTTP: servers, clients, replies, and a Keystone."""
