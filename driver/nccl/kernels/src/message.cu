// The kernels that a Recv queues after its wait: one block that copies a small message and reports it, or
// a grid that copies a large one and then a thread that reports it.
#include <message.h>

KERNEL message_small(Message* m) {
	copy(m);
	dev::sync_block();
	if (dev::thread() == 0) finish(m);
}
KERNEL message_copy(Message* m) { copy(m); }
KERNEL message_done(Message* m) { finish(m); }
