import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from bottlegan.federated.deploy.keys import PORT

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
Proxy = Callable[[Path, str, str], AbstractContextManager[None]]
"""The configuration, and the ports of nginx and of the server behind it."""
AROUND = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/server.conf;
}}
"""


@pytest.fixture
def proxy(any_proxy: Proxy | None) -> Proxy:
    if any_proxy is None:
        pytest.skip("there is no nginx here; install the package of that name")
    return any_proxy


@pytest.fixture
def any_proxy(tmp_path: Path) -> Proxy | None:
    """Run nginx, if it is installed, with the nginx.conf that `deploy init` has written, on other ports."""
    if NGINX is None:
        return None

    @contextmanager
    def run(shipped: Path, port: str, upstream: str) -> Iterator[None]:
        text = shipped.read_text()
        changes = {"listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;", f"127.0.0.1:{PORT}/": f"127.0.0.1:{upstream}/"}
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        folder = tmp_path / f"nginx-{port}"
        folder.mkdir()
        (folder / "server.conf").write_text(text)
        user = "user root;" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(AROUND.format(folder=folder, user=user))
        words = [str(NGINX), "-p", folder, "-e", folder / "error.log", "-c", folder / "nginx.conf"]
        tried = subprocess.run([*words, "-t"], capture_output=True, text=True, check=False)
        assert tried.returncode == 0, tried.stderr
        (folder / "nginx.pid").unlink(missing_ok=True)  # left over from `nginx -t`; starting writes it again
        with subprocess.Popen(words) as process:
            try:
                while not (folder / "nginx.pid").exists():
                    assert process.poll() is None, (folder / "error.log").read_text()
                    time.sleep(0.02)
                yield
            finally:
                process.terminate()

    return run
