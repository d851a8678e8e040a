#!/usr/bin/env bash
# Files that are committed hold no absolute path of the machine they were written on, and no stray conflict marker.
set -euo pipefail
cd "$(dirname "$0")/.."

# Paths under a home, a work folder or /tmp/<name>/ are somebody's; /tmp alone, /etc, /proc, /usr and the like are everybody's.
patterns='(^|[^[:alnum:]_./$}-])/(work|home/[a-z]+|root|Users/[A-Za-z]+|tmp/t)/[[:alnum:]._-]|\.\./shared/|^(<<<<<<<|>>>>>>>) '
# Not `git grep`: a release unpacked from an archive is checked, too.
if grep -rnIE --exclude-dir={.git,target,corpus,artifacts,demo-out,__pycache__} --exclude=check-text.sh --exclude=.git "$patterns" .; then
    echo "check-text: the lines above hold a path of one machine or a conflict marker" >&2
    exit 1
fi
