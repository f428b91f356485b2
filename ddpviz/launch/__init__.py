"""Starts jobs and ends them: torchrun or any command, with the probe injected. Imports trace alone, never torch."""

from ddpviz.launch.job import Job
from ddpviz.launch.spec import JobError, JobSpec, validate

__all__ = ["Job", "JobError", "JobSpec", "validate"]
