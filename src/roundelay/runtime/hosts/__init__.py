"""Several hosts, each with its own `procs`, which knows nothing of them."""
