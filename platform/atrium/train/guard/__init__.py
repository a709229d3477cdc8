"""What keeps a step alive: memory, faults, and a look at where its time goes."""
