"""A cable that comes out."""


def test_verify_names_the_port_of_a_pulled_cable(lab):
    lab.labctl("link", "node1", "eth3", "down")

    verified = lab.play("verify.yml")

    failed = verified.checks("node1", "failed")
    assert verified.code != 0
    assert [check["object"] for check in failed] == ["port rxe1/1 (rail 1, netdev eth3)"]
    assert failed[0]["wanted"] == "state ACTIVE"
    assert failed[0]["seen"].startswith("state DOWN")
    assert "cable" in failed[0]["next_step"]
    assert verified.checks("node2", "failed") == []
