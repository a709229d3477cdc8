"""Starting and watching the processes of a run: torchrun's agent on each node, SLURM jobs with submitit."""
