"""The dashboard: a local web application over `runs/`, live while runs train; it trains nothing."""
