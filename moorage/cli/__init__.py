"""The command line: the program, what its commands share, and the commands that concern the whole cloud."""
