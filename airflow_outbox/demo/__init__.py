"""Real servers, embedded, for the demo, the tests and the benchmarks. Nothing else in the package imports this room."""
