"""Benchmarks: `./dev bench NAME`. Each prints its progress to stderr, and one line of JSON a result to stdout."""
