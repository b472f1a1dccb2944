"""PyTorch: what symmem uses of it, its CUDA allocator, and its communicators."""
