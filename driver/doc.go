// Package driver defines the interfaces between symmem and its backends, which provide memory,
// streams and communicators. The code above these interfaces is the same for all backends.
// Package drivertest tests the contract that every backend must satisfy.
//
// A backend implements mechanisms and makes no decisions: callers choose the memory to map, the
// segments to register, and the path of each collective. Callers also decide whether ranks
// agree, by comparing ledgers; a backend only transports the data to compare and reports the
// result.
//
// Before passing a call to a backend, callers check it with Call.Validate and make sure that the
// windows of the call contain its buffers. A backend does not repeat these checks, but it
// refuses calls that it does not support (see Offer).
//
// All backends treat misplaced buffers in the same way. A rank computes the address of a buffer on
// a peer from the base of the peer's window and from its own offset. If the buffer has a different
// offset on the peer, the result is wrong, and the mistake is detected only if calls are compared.
// The host backend computes addresses in the same way as GPU backends do.
//
// Methods are safe for concurrent use unless documented otherwise. Every wait for a peer has a
// deadline: that of the method's context, or Config.Timeout for methods without a context.
package driver
