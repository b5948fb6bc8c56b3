"""The methods of topic `placement`."""
