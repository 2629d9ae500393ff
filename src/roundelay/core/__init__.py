"""Effects, state, records and small tools, on which everything else stands."""
