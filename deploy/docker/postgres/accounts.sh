# Runs once, when the volume is new: the roles of `horsies-migrate grants`, without login, and an account for each
# process. The migrate job grants the rights, as the owner of the database; none of the others may change a table.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" \
     --set worker="$WORKER_PASSWORD" --set producer="$PRODUCER_PASSWORD" --set viewer="$VIEWER_PASSWORD" <<'SQL'
CREATE ROLE horsies_worker NOLOGIN;
CREATE ROLE horsies_producer NOLOGIN;
CREATE ROLE horsies_viewer NOLOGIN;
CREATE ROLE horsies_operator NOLOGIN;
CREATE ROLE shop_worker LOGIN PASSWORD :'worker' IN ROLE horsies_worker;
CREATE ROLE shop_producer LOGIN PASSWORD :'producer' IN ROLE horsies_producer;
CREATE ROLE shop_viewer LOGIN PASSWORD :'viewer' IN ROLE horsies_viewer;
-- behind a transaction-mode pooler a session cannot keep the planner settings of the claim; a role can
ALTER ROLE shop_worker SET jit = off;
ALTER ROLE shop_worker SET plan_cache_mode = force_generic_plan;
ALTER ROLE shop_worker SET enable_seqscan = off;
ALTER ROLE shop_worker SET enable_hashjoin = off;
ALTER ROLE shop_worker SET enable_mergejoin = off;
ALTER ROLE shop_worker SET enable_bitmapscan = off;
ALTER ROLE shop_worker SET enable_material = off;
SQL
