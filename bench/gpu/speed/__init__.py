"""The checks that state how fast something is, beside what a device can do."""
