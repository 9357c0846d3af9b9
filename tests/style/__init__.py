"""Rules of style that the source code holds."""
