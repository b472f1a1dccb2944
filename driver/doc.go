// Package driver defines the interfaces between symmem and its backends, which provide memory,
// streams and communicators. The code above these interfaces is the same for all backends. Package
// drivertest contains the contract that each backend must pass.
//
// A backend implements mechanisms and makes no decisions: callers choose the memory to map, the
// segments to register, and the path of each collective. Callers also decide whether ranks agree,
// by comparing ledgers; a backend only transports the comparison and reports the result.
//
// Callers check calls with Call.Validate, and make sure that the windows of a call contain its
// buffers, before they pass the call to a backend, which does not repeat these checks. A backend
// reports calls that it does not support (see Offer).
//
// All backends treat misplaced buffers in the same way. A rank computes a peer's address from the
// peer's window base and its own offset. If the buffer has another offset on the peer, the sums are
// wrong, unless calls are compared. The host backend computes addresses exactly like a GPU.
//
// Methods are safe for concurrent use unless documented otherwise. Every wait for a peer has a
// deadline: that of the method's context, or Config.Timeout for methods without a context.
package driver
