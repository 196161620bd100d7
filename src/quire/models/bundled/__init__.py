"""The small checkpoint that ships with Quire, written by `tools/train_bundled_model.py`."""
