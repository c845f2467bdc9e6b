#!/bin/sh
# Runs a class of src/test: run.sh CLASS [arguments]. Builds first where nothing is built.
set -e
here=$(cd "$(dirname "$0")" && pwd)
[ -f "$here/target/classpath" ] || (cd "$here" && mvn -q -B test-compile dependency:build-classpath -Dmdep.outputFile=target/classpath)
exec java -XX:+UseSerialGC -XX:TieredStopAtLevel="${JIT_LEVEL:-4}" \
  -cp "$here/target/classes:$here/target/test-classes:$(cat "$here/target/classpath")" "$@"
