"""This process as a rank: how ranks meet, its groups with their scopes, and its streams."""
