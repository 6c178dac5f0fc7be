"""Operating an outbox: check it, look at it, adopt, replay, and act on parked records."""
