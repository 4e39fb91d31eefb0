"""What `flask horsies worker` names as the app of its child processes. With FLASK_APP set, so can you:

FLASK_APP=shop horsies worker horsies.contrib.flask.worker:queue
"""

from horsies.contrib.flask.loaded import loaded

queue = loaded()
