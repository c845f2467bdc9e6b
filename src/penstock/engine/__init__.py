"""The engine: one async method per operation. Knows neither REST nor gRPC, and holds no SQL."""
