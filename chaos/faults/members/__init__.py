"""Changes of the membership under load."""
