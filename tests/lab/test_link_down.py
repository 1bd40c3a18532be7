"""A cable that comes out."""


def test_verify_names_the_port_of_a_pulled_cable(lab):
    lab.labctl("link", "node1", "eth3", "down")

    verified = lab.play("verify.yml")

    said = verified.messages("node1")
    assert verified.code != 0
    assert "rxe1" in said
    assert "ACTIVE" in said
    assert "DOWN" in said
    assert "Next step" in said or "next step" in said or "next:" in said
