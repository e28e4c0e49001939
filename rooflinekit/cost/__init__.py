"""Op → Cost: the rule table, and the rules that fill it."""

from rooflinekit.cost import rules  # noqa: F401  importing the package registers the rules
