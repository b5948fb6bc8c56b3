"""The methods of topic `scheduler` that are not part of a decision."""
