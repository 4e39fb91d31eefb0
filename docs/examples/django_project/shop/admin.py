"""Orders in the admin; `horsies.contrib.django` adds its own pages for tasks and schedules."""

from django.contrib import admin

from shop.models import Order, Receipt

admin.site.register([Order, Receipt])
