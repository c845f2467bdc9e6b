"""REST: the wire contract over ASGI. `app.make_app(engine)` is all that the runtime needs."""
