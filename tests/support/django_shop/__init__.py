"""A small Django project: requests that pay orders and stash events, each in one transaction."""
