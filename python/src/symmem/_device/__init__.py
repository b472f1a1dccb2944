"""Checked signals for kernels: the memory that they use, and their instructions."""
