"""One owner changes, readers look at the very next call, in lock-step, no sleep anywhere.

usage: coherence.py ROUNDS OWNER_DIR READER_DIR...   (PROCS: the file by which the owner joins)

In each round a file is created, grown, rewritten shorter, renamed, stored into through a shared
mapping, replaced and deleted. After each of these the owner tells every reader what must be
seen, and goes on when each has answered. A reader keeps what a careless cache would serve: the
missing name it asked for before, the file's size, its content, a descriptor, the listing.
"""
import json, mmap, os, socket, sys, traceback

rounds, owner_dir, reader_dirs = int(sys.argv[1]), sys.argv[2], sys.argv[3:]


def whole(fd):
    return os.pread(fd, 1 << 16, 0).decode()


def slurp(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return whole(fd)
    finally:
        os.close(fd)


def gone(path):
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    return False


def look(state, root, step, i, expected):
    """What is wrong after this step, or nothing."""
    a, b = f"{root}/a{i % 7}", f"{root}/b{i % 7}"
    flip = (i // 7 + i) % 3
    if step == "before":
        return None if gone(a) and gone(b) else "a name exists before its file"
    if step == "created":
        # The very next call differs from round to round: stat, open or list.
        if flip == 0 and os.stat(a).st_size != len(expected):
            return f"size {os.stat(a).st_size}"
        if flip == 1 and os.path.basename(a) not in os.listdir(root):
            return "not listed"
        state["fd"] = os.open(a, os.O_RDONLY)
        got = whole(state["fd"])
        return None if got == expected else f"read {got!r}"
    if step in ("grown", "shorter"):
        if flip == 0:
            size = os.stat(a).st_size
        elif flip == 1:
            size = os.fstat(state["fd"]).st_size
        else:
            size = len(whole(state["fd"]))
        if size != len(expected):
            return f"size {size}, expected {len(expected)}"
        got = slurp(a) if i % 2 else whole(state["fd"])
        return None if got == expected else f"read {got!r}"
    if step == "renamed":
        if flip == 0 and not gone(a):
            return "the old name still leads somewhere"
        if slurp(b) != expected:
            return f"the new name gives {slurp(b)!r}"
        if flip == 1 and set(os.listdir(root)) & {f"a{i % 7}", f"b{i % 7}"} != {f"b{i % 7}"}:
            return f"listed: {os.listdir(root)}"
        return None if gone(a) else "the old name still leads somewhere"
    if step == "stored":
        got = whole(state["fd"]) if flip else slurp(b)
        return None if got == expected else f"read {got!r} after the mapped store"
    if step == "replaced":
        got = slurp(b)
        old = whole(state["fd"])
        if old == got:
            return f"the descriptor of the replaced file gives the new one's {old!r}"
        return None if got == expected else f"read {got!r}"
    if step == "deleted":
        os.close(state.pop("fd"))
        if flip == 0 and not gone(b):
            return "a deleted name is there"
        if os.path.basename(b) in os.listdir(root):
            return "a deleted name is listed"
        return None if gone(b) else "a deleted name is there"
    return "unknown step"


def reader(root, line):
    state = {}
    talk = line.makefile("rw")
    for told in talk:
        step, i, expected = json.loads(told)
        try:
            wrong = look(state, root, step, i, expected)
        except OSError as e:
            wrong = str(e)
        talk.write(json.dumps(wrong) + "\n")
        talk.flush()


lines = []
for root in reader_dirs:
    here, there = socket.socketpair()
    if os.fork() == 0:
        here.close()
        for other in lines:
            other[1].close()
        reader(root, there)
        os._exit(0)
    there.close()
    lines.append((root, here, here.makefile("rw")))

# The readers were started before, so they don't belong to the owner's window.
with open(os.environ["PROCS"], "w") as f:
    f.write("0\n")


def tell(step, i, expected=""):
    for _, _, talk in lines:
        talk.write(json.dumps([step, i, expected]) + "\n")
        talk.flush()
    for root, _, talk in lines:
        wrong = json.loads(talk.readline() or '"the reader is gone"')
        if wrong:
            print(f"round {i}, {step}, through {root}: {wrong}")
            sys.exit(1)


for i in range(rounds):
    a, b = f"{owner_dir}/a{i % 7}", f"{owner_dir}/b{i % 7}"
    tell("before", i)
    with open(a, "w") as f:
        f.write(text := f"{i}:")
    tell("created", i, text)
    with open(a, "a", buffering=1) as f:
        f.write(more := "x" * (i % 50 + 5))
        text += more
        if i % 2:
            f.flush()
            tell("grown", i, text)  # the owner still has it open
    if not i % 2:
        tell("grown", i, text)
    os.truncate(a, 4) if i % 2 else open(a, "w").write("abcd")
    text = text[:4] if i % 2 else "abcd"
    tell("shorter", i, text)
    os.rename(a, b)
    tell("renamed", i, text)
    fd = os.open(b, os.O_RDWR)
    with mmap.mmap(fd, 4) as m:
        os.close(fd)
        m[0:1] = b"%d" % (i % 10)
        if i % 2:
            m.flush()
            text = f"{i % 10}{text[1:]}"
            tell("stored", i, text)  # still mapped
    if not i % 2:
        text = f"{i % 10}{text[1:]}"
        tell("stored", i, text)
    with open(a, "w") as f:
        f.write(text := f"new {i} of another length")
    os.replace(a, b)
    tell("replaced", i, text)
    os.unlink(b)
    tell("deleted", i)
print("done", rounds)
