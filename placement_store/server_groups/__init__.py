"""Server groups: rows, and the rules that a claim keeps."""
