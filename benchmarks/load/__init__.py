"""The load generator: processes of their own that drive an engine over plain sockets, as cheaply as Python can."""
