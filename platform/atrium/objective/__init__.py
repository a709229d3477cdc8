"""The axes of an RLVR objective and their composition; pure functions of tensors."""
