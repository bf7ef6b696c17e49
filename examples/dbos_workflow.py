"""A turn of an agent as a DBOS workflow: the workflow runs to its end, the thread keeps the state.

    pip install locus-store[sqlite] dbos
    python dbos_workflow.py order-42
    python dbos_workflow.py order-42 --crash   # ends in the middle; then run the first line again

DBOS repeats a step that it has not recorded. The payment is an effect, so it is made once; the save
has the workflow's id, so it makes one version.
"""

import os
import sys

from dbos import DBOS, SetWorkflowID

from locus_store.blocking import open_checkpointer

checkpointer = open_checkpointer("sqlite:///agents.db", state_type=dict)


def call_bank(idempotency_key: str) -> dict[str, int]:
    """Pay; a real bank recognises the key."""
    print("paying", flush=True)
    return {"receipt": 7}


@DBOS.step()
def pay(thread_id: str) -> dict[str, int]:
    """Make the payment once."""
    receipt: dict[str, int] = checkpointer.effect(thread_id, "pay", call_bank)
    if "--crash" in sys.argv:
        os._exit(1)
    return receipt


@DBOS.step()
def save(thread_id: str, receipt: dict[str, int]) -> str:
    """Save the turn as one version."""
    state = checkpointer.load(thread_id) or {}
    return checkpointer.save({**state, "paid": receipt}, thread_id, DBOS.workflow_id)


@DBOS.workflow()
def turn(thread_id: str) -> str:
    """Run a turn to its end."""
    return save(thread_id, pay(thread_id))


def main() -> None:
    """Start the workflow, or continue it."""
    thread_id = sys.argv[1]
    DBOS(config={"name": "agents", "system_database_url": "sqlite:///dbos.db"})
    DBOS.launch()
    with SetWorkflowID(f"{thread_id}-turn-1"):
        version = DBOS.start_workflow(turn, thread_id).get_result()
    print(version, checkpointer.load(thread_id), checkpointer.list_checkpoints(thread_id))
    DBOS.destroy()
    checkpointer.close()


if __name__ == "__main__":
    main()
