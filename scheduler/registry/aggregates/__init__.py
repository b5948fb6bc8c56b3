"""Host aggregates: rows, changes, their RPC methods, and the provider aggregates that mirror them."""
