#!/bin/sh
# Makes or renews the user's own copy of the lessons, then becomes their notebook server.
# The first argument is the folder with the programs of the course's environment, the others are for the server.
programs=$1
shift
"$programs/ipu-course" lab --copy-only --folder "$HOME/my_course" || echo "The lessons were not copied." >&2
exec "$programs/jupyterhub-singleuser" "$@"
