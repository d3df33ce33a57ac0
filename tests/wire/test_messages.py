import pytest

from vfl.messages.messages import PARTS, REPLIES, SESSION, Kind, Message, MessageError, check_reply, control

REQUEST = Message(Kind.END_ROUND, 4, 1)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Message(Kind.DONE, 4, 1), "DONE of round 5, exchange 2 came where REPORT of round 5, exchange 2 is due"),
        (Message(Kind.REPORT, 5, 1, (control({}),)), "REPORT of round 6, exchange 2 came where"),
        (Message(Kind.REPORT, 4, 0, (control({}),)), "REPORT of round 5, exchange 1 came where"),
        (Message(Kind.REPORT, 4, 1), "REPORT with 0 parts instead of 1"),
        (Message(Kind.REPORT, 4, 1, (control({}), control({}))), "REPORT with 2 parts instead of 1"),
    ],
)
def test_a_reply_that_does_not_answer(reply: Message, text: str):
    check_reply(REQUEST, Message(Kind.REPORT, 4, 1, (control({}),)))
    with pytest.raises(MessageError, match=text):
        check_reply(REQUEST, reply)


def test_every_kind_has_its_parts_and_only_orders_have_an_answer():
    assert PARTS.keys() == {*Kind}
    assert not REPLIES.keys() & {*REPLIES.values()}
    for order, answer in REPLIES.items():
        assert (order in SESSION) == (answer in SESSION)
