"""Carries out deploy/docker without a container engine: `python -m tests.support.containers`, or `just containers`.

Each instruction of the Dockerfile is run in a root of its own, made by debootstrap; each service of compose.yaml is
then started from its image, as a process in namespaces of its own. docs/operations/deploying.md says what is not the
same as with an engine.
"""
