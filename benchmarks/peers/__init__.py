"""Other engines doing the same work on the same machine, in the same run. Each installs itself elsewhere."""
