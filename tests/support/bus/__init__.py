"""Messages that arrive late, twice, out of order or not at all."""
