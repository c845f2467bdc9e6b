#!/usr/bin/env bash
# Writes what sdks/go and sdks/typescript generate from proto/penstock/v1/worker.proto. Needs Go and Node, and grpcio-tools
# in .venv (protoc). Java's is made by its build.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
GOBIN=$tools go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
GOBIN=$tools go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.0
module=penstock.io/go file=penstock/v1/worker.proto
PATH=$tools:$PATH "$python" -m grpc_tools.protoc -Iproto \
  --go_out=sdks/go --go_opt=module=$module --go_opt=M$file=$module/internal/penstockv1 \
  --go-grpc_out=sdks/go --go-grpc_opt=module=$module --go-grpc_opt=M$file=$module/internal/penstockv1 $file
cd sdks/typescript
npm ci --ignore-scripts --no-audit --no-fund --silent
"$python" -m grpc_tools.protoc -I../../proto --plugin=node_modules/.bin/protoc-gen-ts_proto --ts_proto_out=src/generated \
  --ts_proto_opt=outputServices=grpc-js,esModuleInterop=true,importSuffix=.js,env=node,useOptionals=none $file
