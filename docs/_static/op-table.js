// Filters the table of docs/reference/op-table.md by name as one types. `?q=svd` in the address fills the field.
const form = document.getElementById("op-search");
if (form) {
  const [name, raises, count] = ["op-name", "op-raises", "op-count"].map((id) => document.getElementById(id));
  const rows = Array.from(document.querySelectorAll("#op-table tbody tr"), (row) => ({
    row,
    names: row.cells[0].textContent.toLowerCase(),
    raises: row.querySelector(".raises") !== null,
  }));

  // F.gelu, torch.Tensor.add and aten::sum.dim_IntList are other spellings of names in the table
  const spelled = (text) =>
    text.trim().toLowerCase().replace(/\(.*/, "").replace(/^f\./, "functional.").replace(/^torch\.tensor\./, "tensor.")
      .replace(/^(aten::\w+)\..*/, "$1");

  const show = (text) => {
    let shown = 0;
    for (const one of rows) {
      one.row.hidden = !one.names.includes(text) || (raises.checked && !one.raises);
      shown += !one.row.hidden;
    }
    return shown;
  };

  const filter = () => {
    const text = spelled(name.value);
    const shown = show(text) || show(text.split(/[.:]+/).pop()); // x.svd: a method of a name of the reader's
    count.textContent = `${shown} of ${rows.length} rows`;
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", filter);
  name.value = new URLSearchParams(location.search).get("q") || "";
  form.hidden = false;
  filter();
}
