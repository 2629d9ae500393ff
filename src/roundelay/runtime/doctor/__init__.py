"""`roundelay doctor`: checks of a host, and of the network between hosts."""
