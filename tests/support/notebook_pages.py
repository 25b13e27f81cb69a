"""Notebooks as programs: each is executed in a kernel of its own, and what it stores as output is what is printed."""

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def executed(notebook: Path, folder: Path) -> nbformat.NotebookNode:
    """Returns a notebook after its cells ran in order in `folder`, with tidy outputs; an error of a cell is raised."""
    found = nbformat.read(notebook, as_version=4)
    client = NotebookClient(
        found,
        kernel_name="python3",
        timeout=300,
        record_timing=False,
        resources={"metadata": {"path": folder}},
    )
    client.execute()
    for cell in found.cells:
        if cell.cell_type == "code":
            cell.outputs = _tidy(cell.outputs, folder)
    return found


def _tidy(outputs: list, folder: Path) -> list:
    """Returns what a reader wants of outputs: each stream once, without times and with a home instead of the folder."""
    streams = {"stderr": "", "stdout": ""}
    for one in outputs:
        if one.output_type == "stream":
            streams[one.name] += one.text.replace(str(folder), "/home/you")
    # how many commits there were is a matter of time
    streams["stderr"] = re.sub(
        r"^samebits: .*commits? during training.*\n", "", streams["stderr"], flags=re.MULTILINE
    )
    made = [nbformat.v4.new_output("stream", name=name, text=text) for name, text in streams.items() if text]
    return [*made, *(one for one in outputs if one.output_type != "stream")]


def run_notebook(notebook: Path, folder: Path) -> list[str]:
    """Executes a notebook in a folder; returns each cell's difference between what it shows and what is printed."""
    stored, found = nbformat.read(notebook, as_version=4), executed(notebook, folder)
    return [
        f"In[{new.execution_count}] prints:\n{new.outputs}"
        for old, new in zip(stored.cells, found.cells, strict=True)
        if new.cell_type == "code"
        and (old.outputs, old.execution_count) != (new.outputs, new.execution_count)
    ]


def update(notebook: Path, folder: Path) -> None:
    """Executes a notebook and stores what its cells print."""
    nbformat.write(executed(notebook, folder), notebook)
