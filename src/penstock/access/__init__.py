"""Who may do what: identities, roles, the table of what each route and RPC needs, and how a caller proves who it is."""
