"""Settings of the published tables: what a cell is run with when nobody tunes it."""

import pytest

from ytilde import create
from ytilde.bench.tables import cells, choose, list_tables, load_table
from ytilde.method import list_methods, lookup
from ytilde.methods._shared import stage_epochs


@pytest.mark.parametrize("name", list_tables())
def test_every_cell_starts_inside_of_its_own_grid(name):
    """A field that the paper searched has one of the values that it searched."""
    table = load_table(name)
    grids = {row.name: row.grid for row in table.rows}
    for cell in cells(table):
        grid = grids[cell.row].get(cell.group)
        if grid:
            fields = create(cell.method).get_params() | cell.fields
            assert {f: v for f, v in fields.items() if f in grid and v not in grid[f]} == {}


def test_auto_chooses_from_what_a_paper_searched():
    """The grid of a method is that of a published table, for one of its presets."""
    rows = [row for table in map(load_table, list_tables()) for row in table.rows]
    for cls in {lookup(name).cls for name in list_methods() if lookup(name).cls.grid}:
        names = [name for name in list_methods() if lookup(name).cls is cls]
        published = [grid for row in rows if row.method in names for grid in row.grid.values()]
        grid = {field: list(values) for field, values in cls.grid.items()}
        assert grid in published, names


@pytest.mark.parametrize(
    ("table", "row", "column", "fields"),
    [  # of the methods' own papers and codes
        ("dtm_t1", "SOP", "CIFAR-100/IDN-20%", {"lr_u": 1.0, "lr_v": 10.0}),
        ("dtm_t1", "PartT", "CIFAR-10/IDN-20%", {"parts": 20, "anchors": 20}),
        ("dtm_t2", "DivideMix", "Worst", {"warm_up": 0.0333}),  # 10 of 300 epochs
        ("dtm_t2", "ELR+", "CIFAR-100N", {"beta": 0.9, "lam": 7.0, "ramp": 0.4}),
        ("dtm_t2", "PGDF", "CIFAR-100N", {"warm_up": 0.075}),  # 30 of 400 epochs
    ],
)
def test_cells_hold_the_methods_own_settings(table, row, column, fields):
    (found,) = choose(cells(load_table(table)), [row], [column])
    assert found.fields == fields


@pytest.mark.parametrize(("column", "rates"), [("Worst", (10, 10)), ("CIFAR-100N", (1, 10))])
def test_sop_plus_moves_at_its_papers_rates(column, rates):
    (cell,) = choose(cells(load_table("dtm_t2")), ["SOP+"], [column])
    scale = 120 / cell.recipe["epochs"]  # see `sop`
    assert (scale * cell.fields["lr_u"], scale * cell.fields["lr_v"]) == pytest.approx(rates)


@pytest.mark.parametrize("name", ["dtm_t1", "dtm_t2", "cifar_n"])
def test_rates_fall_at_the_authors_epochs_though_a_warm_up_comes_first(name):
    """The schedule's shares are those of the stage that follows it."""
    falls = {"DivideMix": 150, "CC": 150, "PGDF": 150}
    for cell in cells(load_table(name)):
        if cell.row not in falls:
            continue
        epochs = cell.recipe["epochs"]
        fields = create(cell.method).get_params() | cell.fields
        first = stage_epochs(epochs, fields["warm_up"])
        share = float(cell.recipe["schedule"].removeprefix("step:"))
        want = 300 if (cell.row, cell.group) == ("PGDF", "CIFAR-100N") else falls[cell.row]
        assert first + round(share * (epochs - first)) == want, cell


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_the_epochs_that_estimate_T_come_on_top_of_the_papers(number):
    stages = {"Forward": (20, 200, 0), "Reweight": (20, 200, 0), "T-Revision": (20, 200, 200)}
    for cell in cells(load_table(f"causal_nl_t{number}")):
        if cell.row in stages:
            epochs = cell.recipe["epochs"]
            first = stage_epochs(epochs, cell.fields["warm_up"])
            last = stage_epochs(epochs, cell.fields["revision"]) if cell.row == "T-Revision" else 0
            assert (first, epochs - first - last, last) == stages[cell.row]
