"""The ring of transitions: a serving process prints it on SIGUSR1 and goes on; one that crashes prints it and dies."""

import re
import signal

from cluster import Cluster, wait_until

BODY = {"prompt": "The ring", "max_tokens": 4, "temperature": 0}
LINE = re.compile(r"^ring t=-\d+\.\d{6} room=\S+ of=\S+ (attempt=\d+ )?from=\S+ on=\S+ to=\S+$")


def printed(server):
    lines = [line for line in list(server.lines) if line.startswith("ring ")]
    return lines if "ring end" in lines else None


def test_printed_on_sigusr1_and_on_a_crash():
    cluster = Cluster()
    victim = cluster.decode[0]
    try:
        first = cluster.post("/v1/completions", BODY)
        expected = {
            "router": ["from=new on=submit to=queued", "from=queued on=send to=prefill",
                       "from=prefill on=accepted to=decode", "from=decode on=ok to=ended"],
            "prefill": ["room=peer of=decode-0", "room=handoff-send of=router-0/1 attempt=1 from=opening on=ready to=streaming",
                        "from=prefilling on=first_token to=handing_over"],
            "decode": ["room=handoff-receive of=router-0/1 attempt=1 from=new on=reserved to=receiving",
                       "from=receiving on=commit to=decoding"],
        }
        servers = {"router": cluster.router, "prefill": cluster.prefill[0], "decode": cluster.decode[0]}
        for name, server in servers.items():
            server.process.send_signal(signal.SIGUSR1)
            lines = wait_until(lambda s=server: printed(s), f"the ring of {name}")
            assert all(LINE.match(line) for line in lines[1:-1]), lines
            for words in expected[name]:
                assert any(words in line for line in lines), (name, words, lines)
        second = cluster.post("/v1/completions", BODY)
        text = [re.search(rb'"text": ?"(.*?)"', answer).group(1) for answer in (first, second)]
        assert text[0] == text[1]
        cluster.check_no_leak()

        victim.lines.clear()
        victim.process.send_signal(signal.SIGABRT)
        assert victim.process.wait(60) == -signal.SIGABRT
        lines = wait_until(lambda: printed(victim), "the ring of a crashed node")
        assert any("of=router-0/2 attempt=1" in line and line.endswith("from=decoding on=ended to=gone") for line in lines), lines
    finally:
        for server in cluster.servers:
            server.stop(-signal.SIGABRT if server is victim and victim.process.poll() else 0)
