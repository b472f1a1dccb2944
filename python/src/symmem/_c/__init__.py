"""libsymmem.so: its numbers, its functions, and what Python does while they wait."""
