"""What an event does to an instance: `advance` and all that it decides by."""
