"""The endpoints of topic `conductor.<cell uuid>`, one module for each group of methods."""
