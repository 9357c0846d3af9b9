"""One file a simulator whose designs are load-tested: reads their logs, and prints runs as one."""
