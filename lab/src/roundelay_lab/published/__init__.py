"""The cost model beside speedups and hours that papers print."""
