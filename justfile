# The recipes of this repository. Each runs from a fresh clone: uv makes the environment on first use.

set shell := ["bash", "-euo", "pipefail", "-c"]
run := "uv run --quiet"

# list the recipes
default:
    @just --list --unsorted

# make the development environment
setup:
    uv sync --quiet

# the main job on an embedded PostgreSQL: migrate, start a worker, send tasks, print results, end
demo: setup
    @{{run}} python docs/examples/demo.py

# all tests, on the embedded PostgreSQL (or on HORSIES_TEST_DATABASE_URL)
test *args: setup
    {{run}} pytest -n 4 --dist worksteal {{args}}

# the same suite on PostgreSQL 14, 15, 16 or 17: just test-pg 16
test-pg version *args: setup
    {{run}} python -m tests.support.other_server {{version}} {{run}} pytest -n 4 --dist worksteal {{args}}

# the same suite on another Python, by version or path: just test-python 3.13
test-python python *args:
    UV_PROJECT_ENVIRONMENT=.venv-other uv run --quiet --python {{python}} pytest -n 4 --dist worksteal {{args}}

# the tests of one layer
test-unit *args: setup
    {{run}} pytest tests/unit {{args}}

test-int *args: setup
    {{run}} pytest -n 2 tests/integration tests/migration {{args}}

test-e2e *args: setup
    {{run}} pytest -n 2 tests/e2e {{args}}

# random workflows of every kind of node against a pure model, with deaths: 40 seeds of 33 runs, or more: just model 100
model seeds="40" *args: setup
    HORSIES_TEST_MODEL_SEEDS={{seeds}} {{run}} pytest -n 2 tests/integration/test_workflow_model_waits.py tests/integration/test_workflow_model.py {{args}}

# the dashboard's screens against their accepted pictures
snap *args: setup
    {{run}} pytest tests/tui/test_snapshots.py {{args}}

# accept how the dashboard's screens look now; look at the difference before you commit it
snap-update: setup
    {{run}} pytest tests/tui/test_snapshots.py --snapshot-update

# take the pictures of docs/guides/dashboard.md anew, in a real terminal against workers under load
screens: setup
    {{run}} python -m tests.support.dashboard_screens

# format the code
fmt: setup
    {{run}} ruff format .
    {{run}} ruff check --fix .

# style and import contracts
lint: setup
    {{run}} ruff format --check .
    {{run}} ruff check .
    {{run}} lint-imports --no-cache

# pyright (strict)
types: setup
    {{run}} pyright

# generated files are up to date
verify: setup
    {{run}} pytest -q tests/migration/test_walk.py::test_the_committed_dump_is_the_schema tests/architecture

# everything that must hold before a change lands
check: lint types verify test

# a development database that stays: start it, migrate it, print its URL, keep it until Ctrl-C
db-up: setup
    @{{run}} python -m tests.support.development_database

# upgrade a database: just migrate --url postgresql://...
migrate *args: setup
    {{run}} horsies-migrate up {{args}}

# write the next migration into the package: just revision "what it does"
revision message: setup
    {{run}} alembic revision -m "{{message}}" --rev-id "$({{run}} python -c 'import horsies_schema; print(f"{int(horsies_schema.head()) + 1:04}")')"

# write docs/reference/schema.sql, the readable dump of the newest revision
schema-dump: setup
    {{run}} python -m tests.support.schema_dump

# write docs/reference/events.md and worker-metrics.md from the docstrings of the events and from the table of metrics
reference: setup
    {{run}} python -m tests.support.reference_pages

# how fast is it, beside its peers: just bench (quick), bench full, bench peers (installs them), bench against REV, bench --list
bench *args: setup
    {{run}} --with uvloop==0.23.0 python -m bench {{args}}

# wheels and sdists of all packages
build:
    uv build --quiet --all-packages --out-dir dist
