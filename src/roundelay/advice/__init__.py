"""`roundelay advise`: strategies ranked for a cluster and a model, by the simulator and by what runs have shown."""
