"""This process as a rank: rendezvous, groups with their scopes, and streams."""
