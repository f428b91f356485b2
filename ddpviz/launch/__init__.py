"""Starts jobs and ends them: torchrun or any command, with the probe injected. Imports trace alone, never torch."""
