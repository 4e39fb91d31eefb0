# The recipes of this repository. Each runs from a fresh clone: uv makes the environment on first use.

set shell := ["bash", "-euo", "pipefail", "-c"]
run := "uv run --quiet"
# processes of the suite: `just jobs=6 test`
jobs := "4"
# an environment of its own: the site needs nothing of the packages
docs := "UV_PROJECT_ENVIRONMENT=.venv-docs uv run --quiet --only-group docs python docs/site/build.py"

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
    {{run}} pytest -n {{jobs}} --dist worksteal {{args}}

# the long ones, which `just test` leaves out: kill matrices, outages, default thresholds
test-long *args: setup
    {{run}} pytest -n {{jobs}} --dist worksteal -m long {{args}}

# the tests that failed in the last run, once more and one at a time
test-again *args: setup
    {{run}} pytest -n 0 --last-failed --last-failed-no-failures none {{args}}

# the same suite on PostgreSQL 14, 15, 16 or 17: just test-pg 16
test-pg version *args: setup
    {{run}} python -m tests.support.other_server {{version}} {{run}} pytest -n {{jobs}} --dist worksteal {{args}}

# the same suite on another Python, by version or path: just test-python 3.13
test-python python *args:
    UV_PROJECT_ENVIRONMENT=.venv-other uv run --quiet --python {{python}} pytest -n {{jobs}} --dist worksteal {{args}}

# the suite on Python 3.11 to 3.14 and on PostgreSQL 14 to 18, with a table: just test-matrix --python 3.13 --server 14 -- -n 2 tests/integration
test-matrix *args: setup
    {{run}} python -m tests.support.matrix {{args}}

# --no-config: the configuration of this repository holds Django at 5.2
# horsies.contrib.django on Django 6.0, with its django.tasks, on a Python from 3.12 on, by version or path
test-django6 python="3.12" *args: setup
    uv venv --quiet --allow-existing --python {{python}} .venv-django6
    uv pip install --quiet --no-config --python .venv-django6/bin/python 'django>=6.0,<6.1' 'psycopg[binary,pool]>=3.2,<4' -e packages/horsies-client -e packages/horsies-worker -e 'packages/horsies-schema[embedded]'
    {{run}} pytest -n 2 tests/e2e/test_django_tasks.py {{args}}

# docs/operations/upgrading.md, walked with wheels of the last release (before the first tag: of an older commit)
test-upgrade *args: setup
    {{run}} pytest -n 1 -m "" tests/e2e/test_upgrade.py {{args}}

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

# all orders in which statements of the hot path can meet, also in the middle of a statement: half an hour on two cores
interleavings *args: setup
    HORSIES_TEST_INTERLEAVINGS=all {{run}} pytest -n 2 -rA tests/integration/test_interleavings.py {{args}}

# statements against a pure model, so many random examples: just fuzz 5000
fuzz examples="500" *args: setup
    HORSIES_TEST_FUZZ={{examples}} {{run}} pytest -n 2 tests/integration/test_task_machine.py tests/integration/test_client_machine.py {{args}}

# random values in the columns of live rows, while a worker works; the second number is the seed: just fuzz-rows 10000 7
fuzz-rows mutations="10000" seed="1" *args: setup
    HORSIES_TEST_ROW_MUTATIONS={{mutations}} HORSIES_TEST_ROW_SEED={{seed}} {{run}} pytest -n 0 tests/e2e/test_hostile_rows.py {{args}}

# SIGKILL while tasks complete themselves, at every named moment and 500 times at random, or more: just completion-kills 2000
completion-kills kills="500" *args: setup
    HORSIES_TEST_COMPLETION_KILLS={{kills}} {{run}} pytest -n 1 -rA -m "" tests/e2e/test_completing_kills.py {{args}}

# a fleet under load and ~70 faults of every kind from a seed, judged by rows and ledger: just soak --minutes 10 --seed 7
soak *args: setup
    @{{run}} python -m tests.soak {{args}}

# 1,000 sends of one debounced key in ten seconds from eight processes run once, with the last arguments
debounce sends="1000" *args: setup
    HORSIES_TEST_DEBOUNCE_SENDS={{sends}} {{run}} pytest -n 0 -s tests/e2e/test_unique_sends.py {{args}}

# three nodes under Patroni and etcd (apt-get install etcd-server postgresql): faults of the leader under load, and what they cost
failover *args: setup
    {{run}} python -m tests.support.ha {{args}}

# kill two schedulers at every named moment, 10 times at each, or more: just schedule-kills 30
schedule-kills kills="10" *args: setup
    HORSIES_TEST_SCHEDULE_KILLS={{kills}} {{run}} pytest --log-cli-level=WARNING -n 0 -m "" tests/e2e/test_scheduler_kill.py::test_kill_loops_with_schedules_made_at_run_time {{args}}

# beside the tables that the original horsies (0.x) makes: `pythons` are interpreters that have it installed
test-0x pythons *args: setup
    HORSIES_TEST_0X_PYTHONS="{{pythons}}" {{run}} pytest -n 1 tests/integration/test_moving_from_0x.py {{args}}

# a new user's first day: docs/tutorials/first-day.md, followed literally in an empty directory; commands and minutes
diary *args: setup
    @{{run}} python -m tests.support.diary {{args}}

# 100 random sends and 40 random workflows end alike inline and on a worker, from this seed on: just honesty 1000
honesty seed="0" *args: setup
    HORSIES_TEST_HONESTY_SEED={{seed}} {{run}} pytest -n 0 tests/e2e/test_testing_honesty.py {{args}}

# how long 50 tests of a user's project take in real mode, without and with pytest-xdist
bench-testing: setup
    {{run}} python -m bench.testing_kit

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

# write the pages of docs/reference from the code: settings, commands, errors, events, metrics, schema, public names
reference: setup
    {{run}} python -m tests.support.reference_pages

# how many commands, settings, codes, events, metrics, columns and names there are, and that each is in the reference
reference-count: setup
    {{run}} pytest -q -s -n 0 tests/integration/test_reference_counts.py

# draw docs/pictures/*.svg: the states of a task from status.py, the processes, one task, a killed worker
pictures: setup
    {{run}} python -m tests.support.pictures

# build the site of the documentation into build/docs/html; a broken link, anchor or index, or a load from outside, fails
docs:
    {{docs}} build

# the same site on a local port, which follows the pages as they change: just docs-serve --dev-addr localhost:8001
docs-serve *args:
    {{docs}} serve {{args}}

# write tests/architecture/public_api.txt, the snapshot of what SemVer promises; look at the difference before you commit it
api: setup
    {{run}} python -m scripts.api

# tasks that kill their whole worker, among others of the same length and among many short ones: what is lost
bench-poison: setup
    HORSIES_POISON_LIMIT=3 HORSIES_POISON_WORKS=3 HORSIES_POISON_WORK_S=2 {{run}} pytest -q -s -n 0 -m "" tests/e2e/test_snooze_and_crashes.py -k kills_its_worker
    HORSIES_POISON_LIMIT=3 HORSIES_POISONS=2 HORSIES_POISON_WORKS=200 HORSIES_POISON_WORK_S=0.1 {{run}} pytest -q -s -n 0 -m "" tests/e2e/test_snooze_and_crashes.py -k kills_its_worker

# how fast is it, beside its peers: just bench (quick), bench full, bench peers (installs them), bench against REV, bench --list
bench *args: setup
    {{run}} --with uvloop==0.23.0 python -m bench {{args}}

# deploy/docker without a container engine, in roots made by debootstrap: build every image, start everything, send a task
containers *args: setup
    {{run}} python -m tests.support.containers {{args}}

# the manifests of deploy/kubernetes against the published schemas; those of KEDA and Prometheus come from npm
manifests: setup
    {{run}} --with kubernetes-validate==1.37.0 pytest -n 0 -q tests/unit/deploy/test_kubernetes.py
    {{run}} --with kubernetes-validate==1.37.0 python -m tests.support.manifests

# wheels and sdists of all packages
build:
    uv build --quiet --all-packages --out-dir dist

# licences of what users install, then known vulnerabilities: just audit
audit *args: setup
    {{run}} python -m scripts.audit {{args}}

# build, try, commit and tag a release; uploads nothing: just release 1.2.0 --dry-run
release version *args: setup
    {{run}} python -m scripts.release {{version}} {{args}}
