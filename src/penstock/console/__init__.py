"""The web console's files, made of `console/` by `make console`; `penstock.rest.console` serves them."""
