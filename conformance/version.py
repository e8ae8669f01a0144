"""The three versions that a report carries; spec/conformance.md states what each promises."""

SUITE_VERSION = "0.1.0"
SPEC_VERSION = "1.2"
VECTORS_VERSION = "3"
