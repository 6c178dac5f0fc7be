"""Tickets: ask whether a transaction is published, wait for many, listen."""
