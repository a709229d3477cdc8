"""Launching a run's processes: torchrun's agent on each node, and SLURM jobs through submitit."""
