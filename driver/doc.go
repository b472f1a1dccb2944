// Package driver defines the interfaces between symmem and its backends, which provide memory,
// streams and communicators. Package drivertest tests the contract of every backend.
//
// A segment is a block of device memory that is mapped as a whole. A window registers a segment
// with a communicator, so that peers can access it.
//
// Callers check each call with Call.Validate, and backends rely on that. A rank finds a peer's
// buffer at the offset of its own buffer in the peer's window. If the peer's buffer has another
// offset, the result is wrong.
//
// Methods are safe for concurrent use unless documented otherwise. Every wait for a peer ends at
// the context's deadline or, without a context, after Config.Timeout.
package driver
