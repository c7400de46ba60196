"""Processes over gloo that call different methods, or send what is no message of hongtu's, are told so."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch.distributed as dist

from tests import problems

SCRIPT = """
import os, sys, time, warnings
from datetime import timedelta
import torch
import torch.distributed as dist
import hongtu

class Evil:
    def __reduce__(self):
        return os._exit, (9,)

def told(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__} {error}"
    return "nothing"

warnings.simplefilter("ignore")
dist.init_process_group("gloo", timeout=timedelta(seconds=10))
rank = dist.get_rank()
def make():
    return hongtu.Trainer(sys.argv[1], [hongtu.nn.GCNConv(6, 4), hongtu.nn.GCNConv(4, 3)], dependencies="comm")

trainer = make()
trainer.fit(1)
said = [told(trainer.predict if rank else trainer.evaluate)]
large = hongtu.Ranks()
values = large.gather({"of": rank, "rows": torch.arange(5000.0) * rank})  # more than a frame holds
said.append(f"rows {[float(value['rows'].sum()) for value in values]}")
said.append(f"told {len(large.told([0.5] * 3000 if rank == 0 else None))}")
said.append(told(lambda: [*large.each(torch.ones(2, 3 + rank))]))
another = told(make if rank else trainer.evaluate)
loss = trainer.train_epoch().loss  # they may go on
said.append(f"loss {loss!r}")
if sys.argv[2] == "pickles" and rank:
    print("\\n".join(said), flush=True)
    told(lambda: dist.all_gather_object([None, None], Evil()))
elif sys.argv[2] == "raises" and rank:
    print("\\n".join(said), flush=True)
    raise ValueError("my own")
elif sys.argv[2] == "destroys" and rank:
    dist.destroy_process_group()
    time.sleep(5)
elif sys.argv[2] == "waits" and rank:
    said.append(told(dist.barrier))
else:
    said.append(told(trainer.evaluate))
said.append(another)
print("\\n".join(said), flush=True)
os._exit(0)
"""
OUTSIDE = r"in none of hongtu's methods, the last was train_epoch \(call 5\)"
WAITED = r"this rank waited for it before the first pass of evaluate \(call 6\)"
LAST = {  # what rank 0 is told in the end
    "pickles": r"(InputError rank 1 \(.*\) sent what is no frame of hongtu \(it begins with .*let nothing else send"
    r"|RankLost rank 1 \(.*\) does not answer)",  # it may be gone first, for torch takes the frame for a length
    "raises": rf"RankLost rank 1 \(.*\) stopped {OUTSIDE}: my own; {WAITED}",
    "destroys": rf"RankLost rank 1 \(.*train_epoch \(call 5\); {WAITED}",
    "waits": rf"RankLost rank 1 \(.*train_epoch \(call 5\); {WAITED}",
}


@pytest.mark.long
@pytest.mark.parametrize("what", LAST)
def test_processes_that_call_different_methods_are_told(what, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    artifact = problems.prepare(problems.awkward(), 4, 3).path
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    words = [sys.executable, tmp_path / "script.py", artifact, what]
    started = [  # torchrun would stop the other as soon as one ends
        subprocess.Popen(words, env=os.environ | shared | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300)[0].splitlines() for process in started]
    assert said[0][:3] == said[1][:3] and said[0][4] == said[1][4], said
    assert re.match(r"InputError rank 0 is in evaluate \(call 3\), rank 1 in predict \(call 3\); every", said[0][0])
    assert said[0][1:3] == ["rows [0.0, 12497500.0]", "told 3000"]
    assert re.match(
        r"InputError rank 1 \(.*\) sends torch.float32 \[2, 4\], this rank torch.float32 \[2, 3\]", said[0][3]
    )
    assert re.match(LAST[what], said[0][5]), said[0][5]
    assert re.match(
        r"InputError rank 0 is in evaluate \(call 4\), rank 1 in Trainer of Trainer 2 \(call 4\); every", said[0][6]
    )
