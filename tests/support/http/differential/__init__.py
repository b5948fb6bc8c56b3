"""The published Placement and our API side by side: the same requests to both, and the differences."""
