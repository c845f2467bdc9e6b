"""From text to a definition: what it may say, what is wrong in it, and hints."""
