"""The commands `moorage bench`."""
