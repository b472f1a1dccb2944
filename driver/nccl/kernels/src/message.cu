// The kernels that a Recv launches after its wait. A small message takes one block, which copies and
// reports it. A large message takes a grid for the copy, and then one thread for the report.
#include <message.h>

KERNEL message_small(Message* m) {
	copy(m);
	dev::sync_block();
	if (dev::thread() == 0) finish(m);
}
KERNEL message_copy(Message* m) { copy(m); }
KERNEL message_done(Message* m) { finish(m); }
