"""Which Ray clusters are refused before anything is loaded; none is needed to see it."""

from __future__ import annotations

import socket

import pytest

from atrium.assemble.cluster import check_cluster
from atrium.cli import main
from atrium.config.compose import compose
from atrium.errors import ConfigError

ON_CLUSTER = ("rollout=transformers", "rollout.placement=cluster")


def check(*overrides):
    check_cluster(compose([*ON_CLUSTER, *overrides]).rollout)


def test_a_cluster_that_is_not_there_is_one_line_before_anything_is_loaded(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    arguments = ["train", *ON_CLUSTER, f"rollout.cluster_address={address}", f"runs_dir={tmp_path}"]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert f"rollout.cluster_address={address}: no Ray cluster answers there" in said
    assert said.count("\n") == 1
    assert not list(tmp_path.rglob("status.json"))


@pytest.mark.parametrize("address", ["", "auto", "ray://10.0.0.1:10001"])
def test_without_an_address_the_line_names_both_places_for_it(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=r"RAY_ADDRESS=.* names no cluster.*rollout\.cluster_address="):
        check()


def test_a_port_beyond_the_last_one_is_refused():
    with pytest.raises(ConfigError, match="allowed is 1 to 65535"):
        check("rollout.cluster_address=127.0.0.1:99999")


def test_a_cluster_at_a_public_address_is_refused():
    with pytest.raises(ConfigError, match=r"8\.8\.8\.8 is a public.*rollout\.allow_open_cluster=true"):
        check("rollout.cluster_address=8.8.8.8:6379")
