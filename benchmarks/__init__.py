"""Benchmarks: `./dev bench NAME`. Each prints its progress to stderr, and to stdout one line of JSON a result."""
