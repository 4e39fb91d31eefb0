# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""`manage.py horsies_migrate`: create, upgrade and inspect the tables of horsies."""

from collections.abc import Sequence

from horsies.contrib.django.management.commands._passing import PassingCommand

_CONNECTS = ("up", "down", "current", "check")


class Command(PassingCommand):
    help = "Creates and upgrades the tables of horsies (also: down, current, check, sql, grants): horsies migrate."

    def usage(self, name: str) -> str:
        return (
            f"manage.py {name} [up|down|current|check|sql|grants] [options] runs `horsies migrate` on the database of "
            "this project; without a verb, up:\n"
        )

    def arguments(self, given: Sequence[str]) -> list[str]:
        from horsies.contrib.django.migrating import migration_url
        from horsies.contrib.django.project import project_app

        words = list(given)
        if any(one in ("-h", "--help", "--version") for one in words):
            return ["migrate", *words]
        if not words or words[0].startswith("-"):
            words.insert(0, "up")
        app = project_app()
        app.get_broker()  # follow the settings: a test run has changed the database
        broker = app.config.broker
        own: list[str] = []
        if words[0] in _CONNECTS and not _has(words, "--url"):
            own += [f"--url={migration_url(broker)}"]
        if broker.schema is not None and not _has(words, "--schema"):
            own += [f"--schema={broker.schema}"]
        return ["migrate", words[0], *own, *words[1:]]


def _has(words: Sequence[str], option: str) -> bool:
    return any(one == option or one.startswith(f"{option}=") for one in words)
