"""Definitions: uploaded, remembered and read, and what is not uploaded yet."""
