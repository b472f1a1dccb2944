"""The backend "symmem" of torch.distributed."""
