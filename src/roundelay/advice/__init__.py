"""`roundelay advise`: strategies ranked for a cluster and a model, by the simulator and by the results of runs."""
