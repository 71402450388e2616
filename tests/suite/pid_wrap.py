"""5,000 short-lived processes whose ids wrap round, in a pid namespace of their own, with the
daemon in it: no process may be taken for the one that bore its number before.

usage: unshare --pid --fork --mount --mount-proc python3 pid_wrap.py PANEFS STORE MNT FLAG..."""
import errno, os, subprocess, sys

panefs, store, mnt = sys.argv[1:4]
subprocess.run([panefs, "mount", *sys.argv[4:], store, mnt], check=True)
for window in ("c1", "c2"):
    subprocess.run([panefs, "--mnt", mnt, "allocate", window], check=True, stdout=subprocess.DEVNULL)

COUNT, CYCLE = 5000, 250  # 250 numbers, three roles: each number changes its role each time


def tries(window):
    """The windows of the workspaces that this process may write in."""
    may = []
    for n in (1, 2):
        try:
            os.close(os.open(f"{mnt}/ws{n}/f", os.O_CREAT | os.O_WRONLY, 0o644))
            may.append(n)
        except OSError as e:
            if e.errno != errno.EROFS:
                raise
    return may


wrong, numbers = [], {}
for i in range(COUNT):
    if i % CYCLE == 0:
        with open("/proc/sys/kernel/ns_last_pid", "w") as f:
            f.write("1000")
    role = i % 3  # a guest, a member of c1, a member of c2
    pid = os.fork()
    if pid == 0:
        outcome = 99
        try:
            if role:
                with open(f"{mnt}/.panefs/windows/c{role}/procs", "w") as f:
                    f.write("0\n")
            may = tries(role)
            outcome = 0 if may == ([role] if role else []) else 10 + sum(may)
        except BaseException as e:
            print(f"process {i}: {e!r}", flush=True)
        os._exit(outcome)
    numbers[pid] = numbers.get(pid, 0) + 1
    _, status = os.waitpid(pid, 0)
    if status:
        wrong.append((i, pid, role, os.waitstatus_to_exitcode(status)))

subprocess.run([panefs, "unmount", mnt], check=True)
if wrong:
    print(f"{len(wrong)} of {COUNT} were taken for another (index, pid, role, outcome): {wrong[:10]}")
    sys.exit(1)
again = sum(times > 5 for times in numbers.values())
print(f"done: {again} numbers were used more than five times")
sys.exit(0 if again > 100 else 1)
