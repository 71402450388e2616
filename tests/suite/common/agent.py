"""A process that does what the test tells it, one JSON line after another: {"code": ...} is
evaluated (or, where it isn't an expression, executed; its value is then `_`)."""
import ctypes, errno, json, mmap, os, queue, socket, stat, subprocess, sys, threading, time, traceback

MNT = os.environ["MNT"]
libc = ctypes.CDLL(None, use_errno=True)


def _check(result):
    if result < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return result


def b(path):
    return os.fsencode(path)


def sys_open(path, flags, mode=0o644):
    """open and close"""
    os.close(os.open(path, flags, mode))


def renameat2(old, new, flags):
    return _check(libc.renameat2(-100, b(old), -100, b(new), ctypes.c_uint(flags)))


def mknod_fifo(path):
    os.mknod(path, stat.S_IFIFO | 0o644)


def fallocate(fd, mode, offset, length):
    return _check(libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def set_flags(path, add, remove=0):
    """FS_IOC_SETFLAGS through a descriptor for reading"""
    fd = os.open(path, os.O_RDONLY)
    try:
        flags = ctypes.c_int(0)
        _check(libc.ioctl(fd, ctypes.c_ulong(0x80086601), ctypes.byref(flags)))
        flags.value = (flags.value | add) & ~remove
        return _check(libc.ioctl(fd, ctypes.c_ulong(0x40086602), ctypes.byref(flags)))
    finally:
        os.close(fd)


def access(path, mode):
    return _check(libc.faccessat(-100, b(path), mode, 0))


def read(path):
    with open(path, "rb", buffering=0) as f:
        return f.readall()


def write(path, data):
    """Replaces a file's content, and says how many bytes one write(2) took."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        return os.write(fd, data.encode() if isinstance(data, str) else data)
    finally:
        os.close(fd)


def put(path, data):
    """One write(2) to a file that exists."""
    fd = os.open(path, os.O_WRONLY)
    try:
        return os.write(fd, data.encode() if isinstance(data, str) else data)
    finally:
        os.close(fd)


def ctl(data, path=None):
    """One write to a control file: [errno, bytes taken, reply lines until the end]."""
    fd = os.open(path or MNT + "/.panefs/ctl", os.O_RDWR)
    try:
        error, taken = 0, 0
        try:
            taken = os.write(fd, data if isinstance(data, bytes) else data.encode())
        except OSError as e:
            error = e.errno
        lines = b""
        while chunk := os.read(fd, 1 << 16):
            lines += chunk
        return [error, taken, lines.decode().splitlines()]
    finally:
        os.close(fd)


def snapshot(*roots):
    """Everything of a tree that a refused change could have changed."""
    seen = []
    for root in roots:
        for d, dirs, files in sorted(os.walk(root)):
            dirs.sort()
            for name in sorted(dirs + files) + [""]:
                p = os.path.join(d, name)
                s = os.lstat(p)
                data = ""
                if stat.S_ISREG(s.st_mode):
                    data = read(p).decode("latin-1")
                elif stat.S_ISLNK(s.st_mode):
                    data = os.readlink(p)
                x = {k: os.getxattr(p, k, follow_symlinks=False).hex() for k in os.listxattr(p, follow_symlinks=False)}
                seen.append([p, s.st_ino, s.st_mode, s.st_nlink, s.st_uid, s.st_gid, s.st_size, s.st_mtime_ns, s.st_ctime_ns, data, x])
    return seen


class Worker(threading.Thread):
    """A thread that does what it is called with, and gives or raises the outcome."""

    def __init__(self):
        super().__init__(daemon=True)
        self.todo, self.outcome = queue.Queue(), queue.Queue()
        self.start()

    def run(self):
        while (work := self.todo.get()) is not None:
            try:
                self.outcome.put((work(), None))
            except BaseException as e:
                self.outcome.put((None, e))

    def __call__(self, work):
        self.todo.put(work)
        value, error = self.outcome.get()
        if error is not None:
            raise error
        return value

    def end(self):
        self.todo.put(None)
        self.join()


def _answer(code):
    try:
        try:
            todo = compile(code, "<test>", "eval")
        except SyntaxError:
            globals().pop("_", None)
            exec(compile(code, "<test>", "exec"), globals())
            return {"ok": globals().get("_")}
        return {"ok": eval(todo, globals())}
    except OSError as e:
        return {"errno": e.errno, "text": str(e)}
    except BaseException:
        return {"failed": traceback.format_exc()}


def _main():
    talk = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of the test's own code don't disturb the talk
    for line in sys.stdin:
        answer = _answer(json.loads(line)["code"])
        talk.write(json.dumps(answer, default=lambda v: v.decode("latin-1") if isinstance(v, bytes) else repr(v)) + "\n")
        talk.flush()


_main()
