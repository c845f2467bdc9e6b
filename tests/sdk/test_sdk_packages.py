"""The packages of the other languages, as a registry would get them, serve a project that has nothing else of ours."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.testing.postgres import PostgresServer
from sdks.conformance.programs import LANGUAGES, SDKS, TOP, build_once

TYPESCRIPT = """
import { Client, Later, NonRetryable, PenstockError, Retry, StepError, WaitFor, Worker } from "@penstock/sdk";
import type { Instance, Job } from "@penstock/sdk";

interface Order {
  orderId: string;
  amount: number;
}

const parse = ({ orderId, amount }: any): Order => ({ orderId: String(orderId), amount: Number(amount) });
const worker = new Worker("http://127.0.0.1:1", { concurrency: 2, token: async () => "t" }).handle<Order>(
  "charge",
  async ({ variables, idempotencyKey, signal, report }: Job<Order>) => {
    await report({ progress: "1 of 2" });
    if (variables.amount < 0) throw new NonRetryable("negative");
    if (variables.amount > 9) throw new StepError("DECLINED", "no", { variables: { limit: 9 } });
    if (variables.amount === 3) throw new WaitFor("paid", { until: new Date() });
    if (variables.amount === 2) throw new Later(new Date());
    if (signal.aborted) throw new Retry("again", { afterMs: 5 });
    // @ts-expect-error a field that an order does not have
    return { key: idempotencyKey, wrong: variables.nothing };
  },
  { parse, timeoutMs: 1000 },
);
// @ts-expect-error an option that there is not
new Worker("http://127.0.0.1:1", { concurency: 2 });

const client = new Client("http://127.0.0.1:1");
export const started = async (): Promise<Instance["status"]> => (await client.start({ definitionId: "d" })).status;
export const isKnown = (error: unknown): boolean => error instanceof PenstockError && error.code === "not-found";
console.log(typeof worker.run);
"""
OPTIONS = {
    "strict": True,
    "exactOptionalPropertyTypes": True,
    "noUncheckedIndexedAccess": True,
    "module": "NodeNext",
    "target": "ES2022",
    "types": ["node"],
    "skipLibCheck": False,
    "outDir": "out",
}
GO = """package main

import (
	"context"
	"fmt"
	"time"

	penstock "penstock.io/go"
)

type order struct {
	OrderID string `json:"orderId"`
}

func ship(ctx context.Context, job *penstock.Job, o order) (any, error) {
	if o.OrderID == "" {
		return nil, penstock.WaitFor("paid", time.Time{})
	}
	return map[string]string{"trackingNumber": "PS-" + o.OrderID}, nil
}

func main() {
	worker, err := penstock.NewWorker("http://127.0.0.1:1", penstock.WorkerOptions{})
	if err != nil {
		panic(err)
	}
	worker.Handle("ship", penstock.Typed(ship))
	fmt.Println("made")
}
"""
JAVA = """
import io.penstock.sdk.LaterException;
import io.penstock.sdk.Worker;
import java.util.Map;

public class Consumer {
    record Order(String orderId) {}

    public static void main(String[] arguments) {
        new Worker("http://127.0.0.1:1").handle("ship", Order.class, (job, order) -> {
            if (order.orderId().isEmpty()) throw new LaterException("paid", null);
            return Map.of("trackingNumber", "PS-" + order.orderId());
        });
        System.out.println("made");
    }
}
"""
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>consumer</groupId><artifactId>consumer</artifactId><version>1</version>
  <properties>
    <maven.compiler.source>17</maven.compiler.source>
    <maven.compiler.target>17</maven.compiler.target>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
  </properties>
  <dependencies>
    <dependency><groupId>io.penstock</groupId><artifactId>penstock-sdk</artifactId><version>0.1.0</version></dependency>
  </dependencies>
</project>
"""


def run(directory: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("language", ["go", "typescript", "java"])
def test_a_package_has_the_license(language: str) -> None:
    assert (SDKS / language / "LICENSE").read_text() == (TOP / "LICENSE").read_text()


@pytest.mark.node
@pytest.mark.slow(reason="builds a package, and installs it from a registry's dependencies")
def test_the_npm_package_serves_a_typed_project(postgres_server: PostgresServer, tmp_path: Path) -> None:
    build_once(LANGUAGES["typescript"], postgres_server.directory.name)  # with those who play its scenarios
    packed = json.loads(
        run(SDKS / "typescript", "npm", "pack", "--ignore-scripts", "--json", "--pack-destination", str(tmp_path))
    )
    files = {each["path"] for each in packed[0]["files"]}
    assert {"LICENSE", "README.md", "package.json", "dist/index.js", "dist/index.d.ts"} <= files
    assert not any(name.startswith(("dist/conformance", "dist/examples", "src")) for name in files)
    (tmp_path / "package.json").write_text('{"name": "consumer", "private": true, "type": "module"}')
    modules = SDKS / "typescript" / "node_modules"
    wanted = [packed[0]["filename"], str(modules / "typescript"), str(modules / "@types" / "node")]
    run(tmp_path, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *wanted)
    (tmp_path / "consumer.ts").write_text(TYPESCRIPT)
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "include": ["consumer.ts"]}))
    run(tmp_path, "npx", "tsc", "-p", ".")
    assert run(tmp_path, "node", "out/consumer.js") == "function\n"


@pytest.mark.go
@pytest.mark.slow(reason="builds a program of another language")
def test_the_go_module_serves_a_module_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text(GO)
    run(tmp_path, "go", "mod", "init", "consumer")
    run(tmp_path, "go", "mod", "edit", f"-replace=penstock.io/go={SDKS / 'go'}", "-require=penstock.io/go@v0.0.0")
    run(tmp_path, "go", "mod", "tidy")
    assert run(tmp_path, "go", "run", ".") == "made\n"


@pytest.mark.go
@pytest.mark.slow(reason="builds programs of another language")
def test_the_go_module_is_formatted_and_vetted() -> None:
    assert run(SDKS / "go", "gofmt", "-l", ".") == ""
    run(SDKS / "go", "go", "vet", "./...")


@pytest.mark.jdk
@pytest.mark.maven
@pytest.mark.slow(reason="builds an artifact, and a project that depends on it")
def test_the_maven_artifact_serves_a_project(tmp_path: Path) -> None:
    # A copy, as others build in that folder at the same time; a repository of its own, so that no older one is tested.
    copy = tmp_path / "sdks" / "java"
    shutil.copytree(SDKS / "java", copy, ignore=shutil.ignore_patterns("target"))
    shutil.copytree(TOP / "proto", tmp_path / "proto")
    deployed = f"-DaltDeploymentRepository=here::default::{(tmp_path / 'repository').as_uri()}"
    run(copy, "mvn", "-q", "-B", "deploy", "-DskipTests", deployed)
    made = {path.name for path in (tmp_path / "repository/io/penstock/penstock-sdk/0.1.0").glob("*.jar")}
    assert made == {f"penstock-sdk-0.1.0{part}.jar" for part in ("", "-sources", "-javadoc")}
    (tmp_path / "src/main/java").mkdir(parents=True)
    (tmp_path / "src/main/java/Consumer.java").write_text(JAVA)
    repository = f"<repository><id>here</id><url>{(tmp_path / 'repository').as_uri()}</url></repository>"
    (tmp_path / "pom.xml").write_text(POM.replace("</project>", f"<repositories>{repository}</repositories></project>"))
    run(tmp_path, "mvn", "-q", "-B", "compile", "dependency:build-classpath", "-Dmdep.outputFile=classpath")
    classpath = f"target/classes:{(tmp_path / 'classpath').read_text()}"
    assert run(tmp_path, "java", "-cp", classpath, "Consumer") == "made\n"
