"""What `deploy/` and the workflows name is there; linters and schemas look at the rest, in `make check`."""

import json
import re
import tomllib
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from parlay.config import ServerConfig
from parlay.server.metrics import ENDPOINTS, names

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana.json").read_text())
PANELS = DASHBOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]


def test_the_dashboard_asks_for_what_there_is() -> None:
    variables = [str(v["query"]) for v in DASHBOARD["templating"]["list"]]
    asked = {name for query in [*QUERIES, *variables] for name in re.findall(r"\b(?:vllm|parlay):\w+", query)}
    assert len(asked) > 20
    assert asked <= names()


def test_queries_are_whole() -> None:
    assert len(QUERIES) > 25
    for query in QUERIES:
        assert all(query.count(a) == query.count(b) for a, b in ("()", "{}", "[]")), query
        named = re.findall(r"\b(?:vllm|parlay):\w+", query)
        assert query.count('model_name=~"$model_name"') == len(named), query
        for name in named:
            # Only a rate of a counter means anything over restarts; restarts themselves are shown as they are.
            rated = f"rate({name}{{" in query
            assert rated == (name.endswith(("_total", "_bucket")) and "restarts" not in name), query


def test_labels_that_are_asked_for_exist() -> None:
    known = {"le", "position", "method", "phase", "finished_reason", "endpoint", "status", "reason"}
    for query in QUERIES:
        for group in re.findall(r"by \((.*?)\)", query):
            assert set(group.split(", ")) <= known
    for panel in PANELS:
        for target in panel.get("targets", ()):
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert shown <= {n for group in re.findall(r"by \((.*?)\)", target["expr"]) for n in group.split(", ")}


def test_panels_lie_beside_each_other() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    for one, other in combinations([panel["gridPos"] for panel in PANELS], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_the_image() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    instructions = [
        line.split(None, 1) for line in text.replace("\\\n", " ").splitlines() if re.match(r"[A-Z]+ ", line)
    ]
    words = [word for word, _ in instructions]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert "HEALTHCHECK" in words
    assert int(next(rest for word, rest in instructions if word == "USER")) > 0
    copied = [rest.split()[:-1] for word, rest in instructions if word == "COPY" and not rest.startswith("--from")]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for source in (source for sources in copied for source in sources):
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored
    installs = re.findall(r"pip install[^&\n]*", text.replace("\\\n", " ").partition("FROM")[2])
    assert len(installs) == 2
    assert all("--constraint constraints.txt" in install for install in installs)
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {"torch", "scikit_build_core", "nanobind", "cmake", "ninja"} <= pinned
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "serve" in project["optional-dependencies"]
    assert all(requirement.split(">=")[0] in pinned for requirement in project["optional-dependencies"]["serve"])


def test_the_services() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    assert (DEPLOY / services["parlay"]["build"]["context"] / services["parlay"]["build"]["dockerfile"]).exists()
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert {config["source"] for config in service.get("configs", ())} <= set(compose["configs"])
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists()
    for config in compose["configs"].values():
        assert yaml.safe_load(config["content"])
    scraped = yaml.safe_load(compose["configs"]["prometheus"]["content"])["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == ["parlay:8000"]


def test_the_cluster() -> None:
    parts = {part["kind"]: part for part in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
    pod = parts["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert container["image"] == f"parlay:{project['version']}"
    (port,) = container["ports"]
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert f"EXPOSE {port['containerPort']}\n" in dockerfile
    assert f"USER {pod['spec']['securityContext']['runAsUser']}\n" in dockerfile
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in ENDPOINTS
        assert container[probe]["httpGet"]["port"] == port["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["spec"]["volumes"]}
    assert pod["spec"]["terminationGracePeriodSeconds"] > ServerConfig().shutdown_timeout
    for kind in ("Service", "PodDisruptionBudget"):
        selector = parts[kind]["spec"]["selector"]
        assert selector.get("matchLabels", selector).items() <= pod["metadata"]["labels"].items()
    # Waiting requests become the figure that is scaled by.
    (rule,) = yaml.safe_load(parts["ConfigMap"]["data"]["rules.yaml"])["rules"]
    (metric,) = parts["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert rule["seriesQuery"].partition("{")[0] in names()
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]


def test_workflows_run_what_a_contributor_runs() -> None:
    """All that CI runs of make is in `.ci/run` too, and the other way round."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    there = {command for step in steps for command in re.findall(r"^make \w+", step, re.MULTILINE)}
    here = set(re.findall(r"^make \w+", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))
    assert there == here == {"make check", "make docs", "make test", "make clients"}


def test_workflows_call_scripts_that_exist() -> None:
    named = set()
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        named |= set(re.findall(r"\bscripts/\w+\.py", file.read_text()))
        for target in re.findall(r"run: make ([a-z ]+)$", file.read_text(), re.MULTILINE):
            assert all(f"\n{one}:" in (ROOT / "Makefile").read_text() for one in target.split())
    assert {"scripts/wheels.py", "scripts/try_wheel.py"} <= named
    assert all((ROOT / one).is_file() for one in named)
    development = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert (ROOT / ".devcontainer" / development["build"]["dockerfile"]).is_file()
    assert f"\n{development['postCreateCommand'].removeprefix('make ').replace('.venv', '$(VENV)')}:" in (
        (ROOT / "Makefile").read_text()
    )
