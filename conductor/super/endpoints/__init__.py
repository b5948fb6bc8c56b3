"""The methods of topic `conductor`."""
