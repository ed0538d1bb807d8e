"""ONNX's node tests, put to minigrad: each node that a few public calls express gives what ONNX says.

`python -m tests.onnx` runs them and writes table.md; `pytest -m onnx tests/onnx` holds the table to what a run gives.
Both need the package onnx. A family has a file: its functions, by the type of a node, take the node and its inputs.
"""
