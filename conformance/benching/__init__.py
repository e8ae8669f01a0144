"""Speed and memory of targets, side by side in one process.

A request is measured in a process of its own, whose threads are pinned before anything is imported:
`request -> problem -> rivals -> timing -> result`, and `conformance.telling.bench` shows it.
"""
