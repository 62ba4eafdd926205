"""The published Python client, unmodified, against a running daemon.

Usage: checks.py URL

Every coroutine named check_* is one check, with a queue name of its own; each runs once per wire form of the client.
Prints one line per check and form and, last, "N passed, N failed". Exit status 1 when one failed.
"""

import asyncio
import sys
import time
import traceback
import uuid

from queen import Queen

QUEUE_MODE_GROUP = "__QUEUE_MODE__"

FORMS = {
    "json": {},
    "binary": {"binary_push": True, "framed_pop": True},
    "compressed": {"binary_push": True, "push_compression": True, "framed_pop": True},
}


def name(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


async def pop(client, queue, batch=10, group=None, **more):
    builder = client.queue(queue).batch(batch).wait(False)
    if group is not None:
        builder = builder.group(group).subscription_mode(more.get("mode", "all"))
    return await builder.pop()


def values(messages):
    return [message["data"]["n"] for message in messages]


def numbered(count, first=0):
    return [{"data": {"n": n}} for n in range(first, first + count)]


async def check_push_and_pop(client):
    queue = name("push")
    await client.queue(queue).push(numbered(3))
    messages = await pop(client, queue)
    assert values(messages) == [0, 1, 2], messages
    assert all(message["leaseId"] and message["partition"] == "Default" for message in messages)


async def check_create_and_delete(client):
    queue = name("create")
    created = await client.queue(queue).config({"lease_time": 20, "retry_limit": 5}).create()
    assert created["configured"] and created["options"]["leaseTime"] == 20, created
    await client.queue(queue).push(numbered(1))
    deleted = await client.queue(queue).delete()
    assert deleted["deleted"] and deleted["existed"], deleted
    assert await pop(client, queue) == []


async def check_partitions_keep_apart(client):
    queue = name("partitions")
    await client.queue(queue).partition("a").push(numbered(2))
    await client.queue(queue).partition("b b").push(numbered(1, 7))
    messages = await client.queue(queue).partition("b b").batch(5).wait(False).pop()
    assert values(messages) == [7], messages
    messages = await client.queue(queue).partition("a").batch(5).wait(False).pop()
    assert values(messages) == [0, 1], messages


async def check_a_repeated_id_is_stored_once(client):
    queue = name("dedup")
    for _ in range(3):
        await client.queue(queue).push([{"transactionId": "order-1", "data": {"n": 1}}])
    assert values(await pop(client, queue)) == [1]


async def check_payloads_come_back(client):
    queue = name("payloads")
    payloads = [None, True, 0, -1.5, 2**64 - 1, "", "\u0000 \" \\ ü \U0001f41d", [], {}, [[None], {"a": {"": 1}}]]
    await client.queue(queue).push([{"data": payload} for payload in payloads])
    got = [message["data"] for message in await pop(client, queue, 50)]
    assert got == payloads, got


async def check_a_large_payload_comes_back(client):
    queue = name("large")
    text = "0123456789abcdef" * 65536
    await client.queue(queue).push([{"data": {"text": text}}])
    assert (await pop(client, queue))[0]["data"]["text"] == text


async def check_buffered_pushes_arrive(client):
    queue = name("buffered")
    for n in range(25):
        await client.queue(queue).buffer({"message_count": 10, "time_millis": 10000}).push([{"data": {"n": n}}])
    await client.flush_all_buffers()
    assert values(await pop(client, queue, 100)) == list(range(25))


async def check_consume_one_by_one(client):
    queue = name("each")
    await client.queue(queue).push(numbered(12))
    seen = []

    async def handle(message):
        seen.append(message["data"]["n"])

    await client.queue(queue).batch(5).limit(12).each().consume(handle)
    assert seen == list(range(12)), seen
    assert await pop(client, queue) == []


async def check_consume_batches(client):
    queue = name("batches")
    await client.queue(queue).push(numbered(12))
    seen = []

    async def handle(messages):
        seen.extend(values(messages))

    await client.queue(queue).batch(6).limit(12).consume(handle)
    assert seen == list(range(12)), seen
    assert await pop(client, queue) == []


async def check_consume_waits_for_messages(client):
    queue = name("waits")
    seen = []

    async def handle(message):
        seen.append(message["data"]["n"])

    async def produce():
        await asyncio.sleep(0.3)
        await client.queue(queue).push(numbered(1))

    producer = asyncio.create_task(produce())
    await asyncio.wait_for(client.queue(queue).batch(1).limit(1).each().consume(handle)._execute(), 10)
    await producer
    assert seen == [0]


async def check_a_failing_handler_ends_in_the_dead_letters(client):
    queue = name("poison")
    await client.queue(queue).config({"retry_limit": 2}).create()
    await client.queue(queue).push(numbered(1))
    calls = []

    async def handle(message):
        calls.append(message["data"]["n"])
        raise RuntimeError("cannot be handled")

    async def failed(message, error):
        await client.ack(message, False, {"error": str(error)})

    await client.queue(queue).batch(1).wait(False).idle_millis(800).each().consume(handle).on_error(failed)
    assert calls == [0, 0, 0], calls
    page = await client.queue(queue).dlq().limit(10).get()
    assert page["total"] == 1 and len(page["messages"]) == 1, page
    letter = page["messages"][0]
    assert letter["data"] == {"n": 0} and "cannot be handled" in letter["errorMessage"], letter


async def check_ack(client):
    queue = name("ack")
    await client.queue(queue).push(numbered(3))
    messages = await pop(client, queue)
    result = await client.ack(messages[0], True)
    assert result["success"], result
    result = await client.ack(messages[1:], True)
    assert result["success"], result
    assert await pop(client, queue) == []


async def check_ack_of_the_last_completes_the_batch(client):
    queue = name("commit")
    await client.queue(queue).push(numbered(5))
    messages = await pop(client, queue)
    assert (await client.ack(messages[-1], True))["success"]
    assert await pop(client, queue) == []
    late = await client.ack(messages[0], False, {"error": "too late"})
    assert not late["success"], late


async def check_nack_comes_back_and_reaches_the_dead_letters(client):
    queue = name("nack")
    await client.queue(queue).config({"retry_limit": 1}).create()
    await client.queue(queue).push(numbered(1))
    for _ in range(2):
        messages = await pop(client, queue)
        assert values(messages) == [0], messages
        assert (await client.ack(messages[0], False, {"error": "not today"}))["success"]
    assert await pop(client, queue) == []
    page = await client.queue(queue).dlq().get()
    assert [letter["errorMessage"] for letter in page["messages"]] == ["not today"], page


async def check_statuses_by_word(client):
    queue = name("words")
    await client.queue(queue).push(numbered(2))
    for _ in range(5):
        messages = await pop(client, queue)
        assert values(messages) == [0, 1], messages
        assert (await client.ack(messages[0], "retry"))["success"]
    messages = await pop(client, queue)
    result = await client.ack(messages[0], "dlq", {"error": "by hand"})
    assert result["success"], result
    assert values(await pop(client, queue)) == [1]


async def check_groups(client):
    queue = name("groups")
    await client.queue(queue).push(numbered(2))
    for group in ("a", "b"):
        messages = await pop(client, queue, group=group)
        assert values(messages) == [0, 1], (group, messages)
        assert (await client.ack(messages, True, {"group": group}))["success"]
        assert await pop(client, queue, group=group) == []
    assert values(await pop(client, queue)) == [0, 1], "queue mode is one more group"


async def check_a_forgotten_group_is_no_success(client):
    queue = name("forgotten")
    await client.queue(queue).push(numbered(1))
    messages = await pop(client, queue, group="a")
    message = {key: value for key, value in messages[0].items() if key not in ("consumerGroup", "leaseId")}
    try:
        result = await client.ack(message, True)
    except Exception as error:  # the client may raise instead
        result = {"success": False, "error": str(error)}
    assert not result["success"], result


async def check_subscription_modes(client):
    queue = name("modes")
    await client.queue(queue).push(numbered(1))
    assert await pop(client, queue, group="new", mode="new") == []
    assert values(await pop(client, queue, group="all", mode="from_beginning")) == [0]
    assert await client.queue(queue).group("now").subscription_from("now").batch(5).wait(False).pop() == []
    await client.queue(queue).push(numbered(1, 1))
    assert values(await pop(client, queue, group="new", mode="new")) == [1]
    assert values(await client.queue(queue).group("now").batch(5).wait(False).pop()) == [1]


async def check_transaction_commits(client):
    source, target = name("source"), name("target")
    await client.queue(source).push(numbered(1))
    messages = await pop(client, source)
    await client.transaction().ack(messages[0]).queue(target).push([{"data": {"n": 8}}]).commit()
    assert await pop(client, source) == []
    assert values(await pop(client, target)) == [8]


async def check_transaction_with_a_stale_lease_rolls_back(client):
    source, target = name("source"), name("target")
    await client.queue(source).config({"lease_time": 1}).create()
    await client.queue(source).push(numbered(1))
    messages = await pop(client, source)
    await asyncio.sleep(1.3)
    try:
        await client.transaction().ack(messages[0]).queue(target).push([{"data": {"n": 8}}]).commit()
    except Exception as error:
        assert "rolled back" in str(error), error
    else:
        raise AssertionError("a stale lease must roll back")
    assert await pop(client, target) == []
    assert values(await pop(client, source)) == [0]


async def check_long_poll_wakes(client):
    queue = name("poll")

    async def produce():
        await asyncio.sleep(0.3)
        await client.queue(queue).push(numbered(1))

    producer = asyncio.create_task(produce())
    begun = time.monotonic()
    messages = await client.queue(queue).batch(1).wait(True).timeout_millis(20000).pop()
    await producer
    assert values(messages) == [0], messages
    assert time.monotonic() - begun < 5


async def check_long_poll_ends(client):
    begun = time.monotonic()
    assert await client.queue(name("quiet")).batch(1).wait(True).timeout_millis(1000).pop() == []
    assert 0.8 < time.monotonic() - begun < 5


async def check_renew(client):
    queue = name("renew")
    await client.queue(queue).config({"lease_time": 1}).create()
    await client.queue(queue).push(numbered(2))
    messages = await pop(client, queue)
    renewed = await client.renew(messages[0])
    assert renewed["success"] and renewed["renewed"] == 1 and renewed["newExpiresAt"], renewed
    await asyncio.sleep(1.3)
    assert await pop(client, queue) == [], "renewed for a minute"
    assert (await client.ack(messages, True))["success"]
    assert not (await client.renew(messages[0]))["success"]


async def check_expired_lease_is_refused(client):
    queue = name("expired")
    await client.queue(queue).config({"lease_time": 1}).create()
    await client.queue(queue).push(numbered(1))
    messages = await pop(client, queue)
    await asyncio.sleep(1.3)
    result = await client.ack(messages[0], True)
    assert not result["success"] and "lease" in result["error"], result
    assert values(await pop(client, queue)) == [0]


async def check_commit_on_delivery(client):
    queue = name("delivery")
    await client.queue(queue).push(numbered(2))
    messages = await client.queue(queue).batch(5).wait(False).commit_on_delivery().pop()
    assert values(messages) == [0, 1] and not messages[0]["leaseId"], messages
    assert await pop(client, queue) == []


async def main(url):
    checks = [(check, run) for check, run in globals().items() if check.startswith("check_")]
    passed = failed = 0
    for form, options in FORMS.items():
        for check, run in checks:
            client = Queen(url, **options)
            try:
                await asyncio.wait_for(run(client), 60)
                passed += 1
                print(f"ok      {check} ({form})")
            except Exception:
                failed += 1
                print(f"FAILED  {check} ({form})")
                traceback.print_exc()
            finally:
                await client.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
