"""Values that all packages pass on."""
