"""The run directory and its traces: record types, writer, tail-following reader. Imports stdlib and msgspec alone."""
