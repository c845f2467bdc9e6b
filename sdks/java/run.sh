#!/bin/sh
# Runs a class of src/test: run.sh CLASS [arguments]. Builds first where nothing is built. Where sdks/conformance has
# kept the classes of the wire, ready to be mapped, they are: that is a third of the CPU of a program that lives for
# seconds. KEEP_CLASSES=1 keeps them when the program ends. Java keeps only those that come out of jars.
set -e
here=$(cd "$(dirname "$0")" && pwd)
built=$here/target
[ -f "$built/classpath" ] || (cd "$here" && mvn -q -B test-compile dependency:build-classpath -Dmdep.outputFile=target/classpath)
case "${PENSTOCK_URL:-}" in grpc*) kept=$built/grpc.jsa ;; *) kept=$built/rest.jsa ;; esac
own=$built/programs.jar
if [ -n "${KEEP_CLASSES:-}" ]; then
  classes=-XX:ArchiveClassesAtExit=$kept
elif [ -f "$kept" ] && [ -f "$own" ] && [ -z "$(find "$built/classes" "$built/test-classes" -newer "$own")" ]; then
  classes=-XX:SharedArchiveFile=$kept
else
  classes=-Xshare:auto # the default
  own=$built/classes:$built/test-classes
fi
# What does not fit any more, as after an update of Java, is loaded as ever, and no line says so.
exec java -XX:+UseSerialGC -XX:TieredStopAtLevel="${JIT_LEVEL:-4}" -Xlog:cds=off -Xlog:cds+dynamic=off "$classes" \
  -cp "$own:$(cat "$built/classpath")" "$@"
