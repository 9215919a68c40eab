#!/bin/sh
# One visit to a machine with a GPU, where nothing needs to be installed: `sh .gpu/visit.sh`, or with arguments of run-gpu.mjs. What it finds is
# in $OUT as soon as it is found. Run again on the same machine, it goes on where it was stopped.
# `npm run visit` puts it beside a bundle. In a clone, it runs the clone.
[ $# -gt 0 ] || set -- --seconds 530 --probes all --figures all
cd "${0%/*}" || exit
here=$PWD
export OUT="${OUT:-$here/out}"
mkdir -p "$OUT"
# Logs that are not in the repository, which `npm run visit` found.
[ -d traces ] && export CISTERN_TRACES="$here/traces"
name=cistern-gpu-linux-x64
root=$here/$name
if [ ! -f "$name.tar.xz" ]; then
  root=$(cd ../.. && pwd)
elif [ ! -d "$name" ]; then
  tar -xJf "$name.tar.xz" || python3 -m tarfile -e "$name.tar.xz" || exit
fi
# $OUT may be a new, empty folder each time: what is known is kept here as well, and put there first.
known=${CISTERN_VISIT_KNOWN:-$here/known.jsonl}
[ -f "$known" ] && [ ! -f "$OUT/results.jsonl" ] && cp "$known" "$OUT/results.jsonl"
keep() { cp "$OUT/results.jsonl" "$known.new" && mv "$known.new" "$known"; }
(while sleep 1; do keep; done) 2> /dev/null &
keeper=$!
trap 'kill "$keeper"; keep' EXIT
trap 'kill "$runner"; wait "$runner"; exit 1' TERM INT HUP
cd "$root" || exit
[ -d node/bin ] && export PATH="$root/node/bin:$PATH"
node --version > /dev/null 2>&1 || export LD_LIBRARY_PATH="$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
node test/gpu/run-gpu.mjs "$@" > "$OUT/summary.txt" 2>&1 &
runner=$!
wait "$runner"
status=$?
cat "$OUT/summary.txt"
exit "$status"
