from reports.extensions import db


class Report(db.Model):  # type: ignore[name-defined]
    __tablename__ = "reports"

    id = db.Column(db.Integer, primary_key=True)
    customer = db.Column(db.Text, nullable=False)
    orders = db.Column(db.Integer)
