"""Resource providers, what they have and who holds it: the one place where claims are decided."""
