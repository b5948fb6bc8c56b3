"""The methods of topic `conductor.<cell>`."""
