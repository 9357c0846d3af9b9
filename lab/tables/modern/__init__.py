"""Tables on what serving does beyond one pass a token: drafts, shared prefixes, narrow weights."""
