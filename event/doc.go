// Package event describes the actions of a rank: it places and registers memory, calls collectives,
// compares values with other ranks, and reports faults. symmem.Options.OnEvent receives every
// [Event]. Error messages, traces and comparisons between ranks use the same type.
//
// Recording an event, except for a fault, allocates no memory. The strings and the Call of an Event
// never change, so a consumer may keep a copy of the Event.
//
// # Order and locks
//
// Each pool and each group numbers its events and queues them. OnEvent receives the events of a
// pool or a group one at a time, in order, while symmem holds no lock. A call that adds an event
// delivers the queue, unless another goroutine is already doing so. Events of different pools or
// groups may be delivered concurrently. While OnEvent is slow, the queue grows.
//
// OnEvent may call symmem, or wait for another goroutine that does. If it causes an event in the
// same pool or group, that event is delivered after OnEvent has returned. However, OnEvent must not
// wait for Close of a pool or of the Runtime: Close may wait for the call that delivers the event,
// and would then return a TimeoutError.
//
// If OnEvent panics, symmem logs the panic and continues with the next event. If OnEvent calls
// runtime.Goexit, the next call on the pool or group delivers the remaining events. Faults are
// delivered on a separate goroutine, which may still be running when Close returns.
package event
