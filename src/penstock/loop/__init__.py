"""The event loop's own: calls without a task, waking, reading of many sockets, work in threads."""
