"""Dispatch through Kafka: what the relay publishes, and how it reaches the broker."""
