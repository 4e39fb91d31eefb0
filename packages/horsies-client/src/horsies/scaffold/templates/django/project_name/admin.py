from django.contrib import admin

from project_name.models import Customer

admin.site.register(Customer)
