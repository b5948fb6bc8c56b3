"""The command line: the program, the parts that its commands share, and the commands for the whole cloud."""
