# Writes the accounts that may log in, with the passwords of the environment, where only this user can read them.
# PgBouncer logs in to PostgreSQL with the same ones.
set -eu
umask 077
for account in worker producer; do
    variable=$(echo "${account}_PASSWORD" | tr '[:lower:]' '[:upper:]')
    password=$(printenv "$variable" | sed 's/"/""/g')
    printf '"shop_%s" "%s"\n' "$account" "$password"
done > /tmp/userlist.txt
unset WORKER_PASSWORD PRODUCER_PASSWORD
exec pgbouncer /etc/horsies-pgbouncer/pgbouncer.ini
