"""Decisions only: no I/O, no threads, no clock of their own. The caller brings the time."""
