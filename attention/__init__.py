"""Tree attention: prefix part, tree part, and their log-sum-exp merge. Never imports the engine."""
