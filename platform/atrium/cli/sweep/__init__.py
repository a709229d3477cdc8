"""`atrium sweep`: run one, watch it, report on it."""
