// Copies messages between ranks. A Recv launches these kernels before the address of its message is
// known. The host writes the address to a Message later, and then releases the stream.
#pragma once
#include <word.h>

enum MessageState : u32 { MessageWaits = 1, MessageDone = 2 };

// Message describes a copy. It is in pinned host memory. kernels/message.go defines the same structure.
struct Message {
	u64 from, to, bytes;
	// The address of a word that the kernel sets to 1 after the copy, or 0.
	u64 taken;
	// state is a MessageState, or 0 until the stream reaches the message. The stream waits until go is 1.
	u32 state, go;
};

// finish reports to the host and to the sender that the message has been copied. One thread calls it.
// It writes state and go in one store, because the host may set go for the next message once it reads
// MessageDone.
DEVICE void finish(Message* m) {
	dev::fence();
	if (u64 taken = dev::load_relaxed(&m->taken)) dev::store_relaxed((u32*)taken, 1);
	dev::store_relaxed((u64*)&m->state, MessageDone);
}

// copy_parts copies in units of T, four at a time, and returns the number of bytes copied. All threads
// of the grid call it. Both addresses must be aligned to T.
template <class T>
DEVICE u64 copy_parts(char* to, const char* from, u64 bytes) {
	const u64 parts = bytes / sizeof(T), step = (u64)dev::blocks() * dev::threads();
	const T* in = (const T*)from;
	T* out = (T*)to;
	u64 i = (u64)dev::block() * dev::threads() + dev::thread();
	for (; i + 3 * step < parts; i += 4 * step) {
		T a = in[i], b = in[i + step], c = in[i + 2 * step], d = in[i + 3 * step];
		out[i] = a;
		out[i + step] = b;
		out[i + 2 * step] = c;
		out[i + 3 * step] = d;
	}
	for (; i < parts; i += step) out[i] = in[i];
	return parts * sizeof(T);
}

// copy copies a message in the largest units that the two addresses allow. It copies the remaining
// bytes one by one.
DEVICE void copy(const Message* m) {
	const char* from = (const char*)dev::load_relaxed(&m->from);
	char* to = (char*)dev::load_relaxed(&m->to);
	u64 bytes = dev::load_relaxed(&m->bytes), done = 0;
	u32 fits = unit<Pack>((const void*)((u64)from | (u64)to));
	if (fits == sizeof(Pack)) done = copy_parts<Pack>(to, from, bytes);
	else if (fits >= sizeof(u64)) done = copy_parts<u64>(to, from, bytes);
	else if (fits >= sizeof(u32)) done = copy_parts<u32>(to, from, bytes);
	else if (fits >= sizeof(u16)) done = copy_parts<u16>(to, from, bytes);
	copy_parts<u8>(to + done, from + done, bytes - done);
}
