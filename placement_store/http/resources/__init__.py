"""What the API's paths stand for, one noun a file; :mod:`placement_store.http.routes` lists them."""
