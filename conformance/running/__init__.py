"""Targets: found by name, kept in a process of their own, asked case by case."""
