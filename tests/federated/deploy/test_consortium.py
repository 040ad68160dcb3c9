"""What `deploy init` writes, without starting it."""

import json
import re
import shutil
import ssl
import stat
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bottlegan.cli import main as cli
from bottlegan.core.config import load, to_values
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.federated.client.holdings import LabConfig
from bottlegan.federated.deploy.consortium import check_host, check_labs, deploy, describe_app, write_app
from bottlegan.federated.flower.server_app import BAD_INPUT, ServerConfig
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.config import FederationConfig, RoundsConfig, flatten

ROOT = Path(__file__).parents[3]
LABS = ["graz", "uppsala-2"]
SCOPES = ["fe80::1%$(touch owned)", "fe80::1%`id`", "fe80::1%;id", 'fe80::1%"', "fe80::1%eth0"]
"""The scope of an IPv6 address may be any text, which scripts would execute."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with space") / "consortium"
    deploy(folder, "federation.example.org", LABS, FederationConfig(phase2=Phase2Config(rounds=7, restained=0.5)))
    return folder


def test_secrets_are_for_their_owner_and_in_one_place_only(made: Path) -> None:
    secret = [path for path in made.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    names = {str(path.relative_to(made)) for path in secret}
    assert names == {"server/ca.key", "server/server.key", *(f"labs/{lab}/node.key" for lab in LABS)}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secret)
    assert len({path.read_bytes() for path in secret}) == 4


def test_only_the_owner_can_read_any_of_it(made: Path) -> None:
    assert [path for path in (made, *made.rglob("*")) if path.stat().st_mode & 0o077] == []
    for script in made.rglob("*.sh"):
        # run.sh and register.sh write no files.
        assert "umask 077\n" in script.read_text() or script.name in ("run.sh", "register.sh")


def test_the_operators_token_is_the_servers_alone(made: Path) -> None:
    token = (made / "server" / "operator.token").read_text().strip()
    assert len(token) >= 32
    found = [path for path in made.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
    assert found == [made / "server" / "operator.token"]
    text = (made / "server" / "superlink.sh").read_text()
    assert "bottlegan deploy superlink --token operator.token -- --host 127.0.0.1" in text


def test_the_servers_certificate_is_signed_for_its_host_and_its_own_machine(made: Path) -> None:
    server = made / "server"
    authority = x509.load_pem_x509_certificate((server / "ca.crt").read_bytes())
    own = x509.load_pem_x509_certificate((server / "server.crt").read_bytes())
    own.verify_directly_issued_by(authority)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["federation.example.org", "localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert own.not_valid_before_utc < datetime.now(UTC) < own.not_valid_after_utc - timedelta(days=700)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(server / "server.crt", server / "server.key")
    for lab in LABS:
        assert (made / "labs" / lab / "ca.crt").read_bytes() == (server / "ca.crt").read_bytes()


def test_strict_clients_accept_the_certificate(made: Path) -> None:
    """A TLS handshake in memory, with the strict rules of newer Pythons."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made / "server" / "server.crt", made / "server" / "server.key")
    client = ssl.create_default_context(cafile=made / "server" / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname="federation.example.org")
    for _ in range(4):
        for side in (theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert theirs.version() == "TLSv1.3"


def test_node_keys_are_what_flower_wants_and_their_public_halves_are_with_the_server(made: Path) -> None:
    for lab in LABS:
        folder = made / "labs" / lab
        key = serialization.load_ssh_private_key((folder / "node.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp384r1"
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        assert (folder / "node.key.pub").read_bytes().strip() == public
        assert (made / "server" / "keys" / f"{lab}.pub").read_bytes().strip() == public


def test_scripts_are_valid_and_can_be_run(made: Path) -> None:
    scripts = sorted(made.rglob("*.sh"))
    assert len(scripts) == 4 + len(LABS)
    for script in scripts:
        assert script.stat().st_mode & stat.S_IXUSR
        subprocess.run(["/bin/sh", "-n", script], check=True)
    assert f"set -- {' '.join(LABS)}\n" in (made / "server" / "register.sh").read_text()
    for lab in LABS:
        assert "federation.example.org:443" in (made / "labs" / lab / "start.sh").read_text()


@pytest.mark.parametrize(
    ("status", "details", "code", "said"),
    [
        ("completed", "", 0, ""),
        ("failed", "too few clients", 1, "Run 42 has failed: too few clients\n"),
        ("stopped", "", 1, "Run 42 has stopped: \n"),
        ("failed", f'it ended: {BAD_INPUT}no "x" \\ here', 2, 'bottlegan: no "x" \\ here\n'),
    ],
)
def test_the_run_can_be_waited_for_and_its_status_returned(
    status: str, details: str, code: int, said: str, made: Path, tmp_path: Path
) -> None:
    shutil.copy(made / "server" / "run.sh", tmp_path)
    (tmp_path / "sleep").write_text("#!/bin/sh\nexit 0\n")
    asked = {"run": {"success": True, "run-id": "42"}, "list": {"runs": [{"status": "running", "status-details": ""}]}}
    end = {"runs": [{"run-id": "42", "status": f"finished:{status}", "status-details": details}]}
    for name, answer in {**asked, "end": end}.items():
        # As Flower prints it, with one key per line.
        (tmp_path / name).write_text(json.dumps(answer, indent=2))
    (tmp_path / "flwr.sh").write_text('#!/bin/sh\necho "$@" >> asked\ncat "$1"\n[ "$1" = run ] || cp end list\n')
    for name in ("flwr.sh", "sleep"):
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    words = ["--wait", "--run-config", "seed=1"]
    done = subprocess.run(
        [tmp_path / "run.sh", *words], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(said)
    if code in (0, 2):
        assert done.stderr == said
    lines = (tmp_path / "asked").read_text().splitlines()
    assert lines[0] == "run app consortium --format json --run-config seed=1"
    assert lines[1:] == ["list consortium --run-id 42 --format json"] * 2


@pytest.mark.parametrize(
    ("why", "code", "said"),
    [
        ("[code: 15] Invalid run configuration.", 2, "bottlegan: --run-config has a key that is not in app/pyproject"),
        ("connection refused", 1, '{"success": false, "error-message": "connection refused"}'),
    ],
)
def test_a_run_that_is_not_started_is_not_waited_for(
    why: str, code: int, said: str, made: Path, tmp_path: Path
) -> None:
    shutil.copy(made / "server" / "run.sh", tmp_path)
    answer = json.dumps({"success": False, "error-message": why})
    (tmp_path / "flwr.sh").write_text(f"#!/bin/sh\necho '{answer}'\nexit 1\n")
    (tmp_path / "flwr.sh").chmod(0o755)
    done = subprocess.run([tmp_path / "run.sh", "--wait"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code
    assert done.stderr.startswith(said)


def test_nginx_lets_labs_reach_the_fleet_api_and_nothing_else(made: Path) -> None:
    text = (made / "server" / "nginx.conf").read_text()
    blocks = dict(re.findall(r"location ([^{]+) \{(.*?)\}", text, re.DOTALL))
    assert set(blocks) == {"/v1/fleet/", "= /health", "/"}
    assert [place for place, block in blocks.items() if "proxy_pass" in block] == ["/v1/fleet/", "= /health"]
    assert blocks["/"].strip() == "return 404;"
    assert "listen 443 ssl;" in text
    assert text.count("{") == text.count("}")
    size = re.search(r"client_max_body_size (\d+)m;", text)
    assert size is not None
    assert int(size[1]) > 5
    assert "--host 127.0.0.1 " in (made / "server" / "superlink.sh").read_text()


def test_the_template_of_a_labs_configuration_can_be_used_with_all_of_its_lines(made: Path, tmp_path: Path) -> None:
    text = (made / "labs" / "graz" / "lab.toml").read_text()
    assert load(LabConfig, made / "labs" / "graz" / "lab.toml").images == (Path("images"),)
    (tmp_path / "lab.toml").write_text(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))
    found = load(LabConfig, tmp_path / "lab.toml")
    assert (found.labeled, found.test, found.reference) == (Path("labeled"), Path("test"), Path("reference"))


def test_the_page_for_it_names_the_lab_and_the_host(made: Path) -> None:
    text = (made / "labs" / "graz" / "README.md").read_text()
    assert text.startswith("# graz:")
    assert "federation.example.org" in text
    assert "{{" not in text


def test_the_app_holds_the_federations_settings(made: Path) -> None:
    app = tomllib.loads((made / "server" / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"]["phase2"]["rounds"] == 7
    assert app["config"]["phase2"]["restained"] == 0.5
    assert app["config"]["server"] == to_values(ServerConfig(clients=2))


def test_the_app_in_the_repository_is_what_would_be_written_now(tmp_path: Path) -> None:
    write_app(tmp_path, FederationConfig(), ServerConfig())
    for name in ("pyproject.toml", "README.md"):
        shipped = (ROOT / "apps" / "federation" / name).read_text()
        assert shipped == (tmp_path / name).read_text(), "a default has changed; run: make app"


def test_the_app_refers_to_what_is_there_in_flowers_own_words() -> None:
    from flwr.common.config import flatten_dict, validate_config  # noqa: PLC0415 - private, and only needed here

    described = describe_app(FederationConfig(), ServerConfig())
    valid, errors, warnings = validate_config(described, check_module=True, project_dir=ROOT)
    assert (valid, errors, warnings) == (True, [], [])
    flat = flatten_dict(described["tool"]["flwr"]["app"]["config"])
    assert {key: value for key, value in flat.items() if not key.startswith("server.")} == flatten(FederationConfig())


@pytest.mark.parametrize("name", ["example.org", "a", "10.0.0.7", "::1", "x-1.example"])
def test_hosts(name: str) -> None:
    check_host(name)


@pytest.mark.parametrize(
    "name", ["", "https://a.org", "a.org:443", "a b", "-a", "a;reboot", "$(x)", "a..b", "a" * 300, *SCOPES]
)
def test_what_is_no_host_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="neither a host"):
        check_host(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "-a", "$(x)", "a'", "ä", "a" * 64])
def test_what_is_no_lab_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot be called"):
        check_labs([name])
    with pytest.raises(InputError, match="same name"):
        check_labs(["a", "A"])


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["bottlegan", *map(str, words)])
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_more_labs_in_a_round_than_there_are_is_refused(tmp_path: Path) -> None:
    config = FederationConfig(rounds=RoundsConfig(least=3))
    with pytest.raises(ConfigError, match=r"3 clients must reply in each round, but there are 2; lower rounds.least"):
        deploy(tmp_path / "new", "a.org", LABS, config)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ['a"b', "a$b", "a;b", "a{b", "a\\b", "a\nb"])
def test_a_path_that_nginx_would_misread_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be used"):
        deploy(tmp_path / name, "a.org", LABS, FederationConfig())
    assert not (tmp_path / name).exists()


def test_a_folder_in_use_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "key").touch()
    assert run(monkeypatch, "deploy", "init", tmp_path / "used", "--host", "a.org") == 2
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["key"]
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_ends_by_naming_where_to_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.toml").write_text("[phase2]\nrounds = 3\n[labs]\ncount = 9\n")
    words = ("deploy", "init", tmp_path / "new", "--host", "::1", "--labs", "a, b,c", "--config", tmp_path / "c.toml")
    assert run(monkeypatch, *words) == 0
    assert str(tmp_path / "new" / "README.md") in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "new" / "labs").iterdir()) == ["a", "b", "c"]
    assert "[::1]:443" in (tmp_path / "new" / "labs" / "a" / "start.sh").read_text()
    assert "clients = 3" in (tmp_path / "new" / "server" / "app" / "pyproject.toml").read_text()
