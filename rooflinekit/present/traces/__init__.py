"""Predicted steps as traces, for Perfetto."""
