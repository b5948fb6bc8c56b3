"""The endpoints of topic `scheduler` other than the decision itself."""
