"""A packed model behind a page and an HTTP endpoint."""
