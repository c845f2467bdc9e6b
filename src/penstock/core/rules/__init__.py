"""Tables and rules that know no definition: states, fencing, correlation, rules of starts."""
