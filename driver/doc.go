// Package driver defines the interfaces between symmem and its backends, which provide memory,
// streams and communicators. Package drivertest tests the contract of every backend.
//
// A segment is a block of device memory that is mapped as a whole. A window registers a segment
// with a communicator, so that peers can access it.
//
// Callers check each call with Call.Validate, and backends rely on that. To access a peer's buffer,
// a rank adds the offset of its own buffer to the base address of the peer's window. If the peer
// passes a different offset, the result is wrong.
//
// Methods are safe for concurrent use unless documented otherwise. Every wait for a peer ends at
// the context's deadline or, without a context, after Config.Timeout.
package driver
