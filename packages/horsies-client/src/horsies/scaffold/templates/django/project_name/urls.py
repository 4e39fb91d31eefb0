from django.contrib import admin
from django.urls import path

from project_name import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("customers", views.sign_up),
    path("customers/<int:customer_id>/welcome", views.read_welcome),
]
