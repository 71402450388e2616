/* Creates and writes a file through io_uring: uring inline|async|sqpoll PATH
 * Prints "ok", or the errno of the operation that failed. No liburing needed. */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int ring;
static struct io_uring_params p;
static char *sq, *cq;
static struct io_uring_sqe *sqes;

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(2);
}

static void *map(size_t size, off_t offset)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);
	if (at == MAP_FAILED)
		die("mmap of the ring");
	return at;
}

/* One operation, from its submission to its result. */
static int run(struct io_uring_sqe *op)
{
	unsigned *tail = (unsigned *)(sq + p.sq_off.tail);
	unsigned mask = *(unsigned *)(sq + p.sq_off.ring_mask);
	unsigned at = *tail & mask;
	unsigned flags = IORING_ENTER_GETEVENTS;

	sqes[at] = *op;
	((unsigned *)(sq + p.sq_off.array))[at] = at;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	if (p.flags & IORING_SETUP_SQPOLL)
		flags |= IORING_ENTER_SQ_WAKEUP;
	if (syscall(__NR_io_uring_enter, ring, 1, 1, flags, NULL, 0) < 0)
		die("io_uring_enter");

	unsigned *head = (unsigned *)(cq + p.cq_off.head);
	unsigned seen = *head;
	while (__atomic_load_n((unsigned *)(cq + p.cq_off.tail), __ATOMIC_ACQUIRE) == seen)
		;
	struct io_uring_cqe *cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
	int result = cqes[seen & *(unsigned *)(cq + p.cq_off.ring_mask)].res;
	__atomic_store_n(head, seen + 1, __ATOMIC_RELEASE);
	return result;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	if (!strcmp(argv[1], "sqpoll"))
		p.flags = IORING_SETUP_SQPOLL;
	ring = syscall(__NR_io_uring_setup, 4, &p);
	if (ring < 0)
		die("io_uring_setup");
	sq = map(p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
	cq = map(p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
	sqes = map(p.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
	/* IOSQE_ASYNC: by a worker thread of the kernel's, which has a thread id of its own. */
	unsigned char how = strcmp(argv[1], "async") ? 0 : IOSQE_ASYNC;

	struct io_uring_sqe open_op = {
		.opcode = IORING_OP_OPENAT,
		.flags = how,
		.fd = AT_FDCWD,
		.addr = (unsigned long)argv[2],
		.len = 0644,
		.open_flags = O_CREAT | O_WRONLY | O_TRUNC,
	};
	int file = run(&open_op);
	if (file < 0) {
		printf("%d\n", -file);
		return 0;
	}
	struct io_uring_sqe write_op = {
		.opcode = IORING_OP_WRITE,
		.flags = how,
		.fd = file,
		.addr = (unsigned long)"by a ring\n",
		.len = 10,
	};
	int wrote = run(&write_op);
	if (wrote != 10) {
		printf("%d\n", -wrote);
		return 0;
	}
	puts("ok");
	return 0;
}
