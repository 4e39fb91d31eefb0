from django.apps import AppConfig


class ProjectConfig(AppConfig):
    name = "project_name"
    default_auto_field = "django.db.models.BigAutoField"
