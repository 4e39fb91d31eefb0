import os

# Recorded and inline tests open no database, but the app wants to know one.
os.environ.setdefault("HORSIES_DATABASE_URL", "postgresql://localhost/shop")
os.environ["SHOP_PAGE_S"] = "0"
