"""Values that all rooms pass on."""
