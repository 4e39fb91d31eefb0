"""The pages of the shop, and the admin."""

from django.contrib import admin
from django.urls import path
from shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/", views.place_order),
    path("orders/<int:order_id>/", views.show_order),
    path("orders/<int:order_id>/reminder/", views.remind),
]
