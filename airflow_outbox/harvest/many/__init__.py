"""Many outboxes in one process: a list of names and patterns, one election, few connections (docs/concepts/many.md)."""
