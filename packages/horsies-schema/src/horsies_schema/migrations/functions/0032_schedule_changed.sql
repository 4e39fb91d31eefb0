-- Keeps the state of a schedule in step with its row in horsies_schedules, which may be written by the API, the command
-- line, the dashboard or SQL. It runs as the owner of the tables, so that an operator needs no right on other columns of
-- the state.
--
-- Before: a change counts the version up, and notes since when the timing holds. After: a new schedule, or one with
-- another timing, gets a state without a hash, which tells schedulers to plan it; one that was deleted takes its state
-- and its history along. Both wait for a scheduler that is just firing the schedule: its slot is fired by the old row,
-- and the next one is planned by the new row.
--
-- A name that a scheduler lists in its code is given back to the code: what an operator has set, the last run and the
-- history stay, and a state without a hash tells schedulers to plan it. `updated_at` stays too: it would say that a
-- scheduler is running.
CREATE OR REPLACE FUNCTION @schema@.horsies_schedule_changed()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
    times constant text[] := '{created_at,updated_at,timed_at}';
    is_timing boolean;
BEGIN
    IF TG_LEVEL = 'STATEMENT' THEN
        PERFORM pg_notify('schedule_state', '');
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        IF EXISTS (SELECT FROM @schema@.horsies_schedulers s WHERE OLD.name = ANY (s.schedules)) THEN
            UPDATE @schema@.horsies_schedule_state
               SET is_data = false, config_hash = NULL, next_run_at = NULL, problem = NULL, problem_at = NULL
             WHERE schedule_name = OLD.name AND is_data;
            RETURN NULL;
        END IF;
        DELETE FROM @schema@.horsies_schedule_state WHERE schedule_name = OLD.name AND is_data;
        DELETE FROM @schema@.horsies_schedule_runs WHERE schedule_name = OLD.name;
        RETURN NULL;
    END IF;
    is_timing := TG_OP = 'INSERT'
        OR (NEW.pattern, NEW.timezone, NEW.skipped_times, NEW.enabled)
           IS DISTINCT FROM (OLD.pattern, OLD.timezone, OLD.skipped_times, OLD.enabled);
    IF TG_WHEN = 'BEFORE' THEN
        IF TG_OP = 'UPDATE' AND NEW.name <> OLD.name THEN
            RAISE USING ERRCODE = 'check_violation', HINT = 'delete it and insert another one',
                MESSAGE = 'schedule ' || quote_literal(OLD.name) || ' cannot get another name: its runs are known by it';
        END IF;
        IF TG_OP = 'INSERT' THEN
            NEW.version := 1;
        ELSE
            NEW.version := OLD.version;
            IF to_jsonb(NEW) - times IS DISTINCT FROM to_jsonb(OLD) - times THEN
                NEW.version := OLD.version + 1;
                NEW.updated_at := statement_timestamp();
            END IF;
        END IF;
        IF is_timing THEN
            NEW.timed_at := statement_timestamp();
        END IF;
        RETURN NEW;
    END IF;
    IF is_timing THEN
        INSERT INTO @schema@.horsies_schedule_state (schedule_name, is_data) VALUES (NEW.name, true)
        ON CONFLICT (schedule_name) DO UPDATE
           SET is_data = true, config_hash = NULL, next_run_at = NULL, problem = NULL, problem_at = NULL;
    ELSE
        UPDATE @schema@.horsies_schedule_state SET problem = NULL, problem_at = NULL
         WHERE schedule_name = NEW.name AND problem_at IS NOT NULL;
    END IF;
    RETURN NULL;
END
$function$
