package symmem

// Failing is closed as soon as this rank has seen a fault of the group: before Ended, since the
// ranks then take up to seconds to find out the cause together, which Err waits for. A Close of
// this rank does not close it. A fault that a kernel reports in a graph which another library
// replays is seen within 50 ms.
func (g *Group) Failing() <-chan struct{} { return g.fault.seen }

// Ended is closed when the group has failed or was closed; Err then says how. A rank that is in no
// call of the group learns within seconds that another one has failed.
func (g *Group) Ended() <-chan struct{} { return g.fault.ended }
