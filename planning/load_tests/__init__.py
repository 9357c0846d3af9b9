"""Load tests, one file per simulator: read benchmark logs, format runs as load-test reports."""
