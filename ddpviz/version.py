"""The version, in a file of its own: rooms that write it down do not import the package's public names with it."""

__version__ = "0.1.0"
