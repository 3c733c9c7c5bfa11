"""Calls that mypy must accept, and calls that it must reject, marked with `E:` and why."""

from typing import assert_type

from fairlead import Fairlead, JobHandle, Queue, Retry

app = Fairlead("memory://", queues=[Queue("mail")])


@app.task
def add(a: int, b: int = 2) -> int:
    return a + b


@app.task(queue="mail", retry=Retry(attempts=3), timeout=30)
async def welcome(user_id: int, *, name: str) -> str:
    return name * user_id


def right() -> None:
    assert_type(add.enqueue(1), JobHandle[int])
    assert_type(add.enqueue(1, b=3).result(timeout=1), int)
    assert_type(welcome.enqueue(1, name="x"), JobHandle[str])
    app.enqueue_many(add.call(n) for n in range(3))


async def right_async() -> None:
    assert_type(await welcome.aenqueue(1, name="x"), JobHandle[str])
    assert_type(await (await welcome.using(tags=["a"]).aenqueue(1, name="x")).aresult(), str)


def wrong() -> None:
    add.enqueue("1")  # E: incompatible type "str"; expected "int"
    add.enqueue()  # E: Missing positional argument "a"
    add.enqueue(1, 2, 3)  # E: Too many arguments
    add.enqueue(1, c=3)  # E: Unexpected keyword argument "c"
    add.call(None)  # E: incompatible type "None"; expected "int"
    welcome.enqueue(1)  # E: Missing named argument "name"
    welcome.using(delay=1).enqueue("x", name="y")  # E: incompatible type "str"; expected "int"
    welcome.using(dealy=1)  # E: Unexpected keyword argument "dealy"
    text: str = add.enqueue(1).result()  # E: Incompatible types in assignment
    app.enqueue_many([add])  # E: incompatible type
    print(text)


async def wrong_async() -> None:
    await welcome.aenqueue(user="x", name="y")  # E: Unexpected keyword argument "user"


@app.task(que="mail")  # E: Unexpected keyword argument "que"
def third() -> None: ...
