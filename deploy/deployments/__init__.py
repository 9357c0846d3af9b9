"""One file a simulator whose designs are deployed: the text that starts one on a target."""
