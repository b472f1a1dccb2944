// Package event describes the actions of a rank: placing and registering memory, calling
// collectives, comparing values and reporting faults. symmem.Options.OnEvent receives every
// [Event]. Recording an event, except for a fault, allocates no memory. The strings and the Call of
// an Event never change, so a consumer may keep a copy of the Event.
//
// # Order and locks
//
// OnEvent receives the events of a pool or a group one at a time, in order, while symmem holds no
// lock. A call that adds an event delivers the queued events, unless another goroutine is doing so.
// Events of different pools or groups may be delivered concurrently. The queue has no limit.
//
// OnEvent may call symmem, or wait for another goroutine that does. Events that it causes in the
// same pool or group are delivered after it has returned. It must not wait for Close of a pool or
// of the Runtime, because Close may wait for the call that delivers the event.
//
// If OnEvent panics, symmem logs the panic and continues with the next event. After
// runtime.Goexit, the next call on the pool or group delivers the remaining events. Faults are
// delivered on a separate goroutine, which may still be running when Close returns.
package event
