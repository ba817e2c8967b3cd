"""Files, folders, tables and progress: what every job needs, and nothing of what jobs are about."""
