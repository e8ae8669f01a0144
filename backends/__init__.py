"""Thin adapters: each makes one framework or library a target of the suite."""
