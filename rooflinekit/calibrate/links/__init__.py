"""Measured collectives → constants of links."""
