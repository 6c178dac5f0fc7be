"""Decisions only: no I/O, no threads, no clock of their own. Whoever calls brings the time."""
