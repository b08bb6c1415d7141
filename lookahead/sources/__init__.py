"""Sources of guesses, one file each, behind one protocol."""
