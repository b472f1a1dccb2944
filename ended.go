package symmem

// Ended is closed when the group has failed or was closed; Err then says how. A rank that is in no
// call of the group learns within seconds that another one has failed.
func (g *Group) Ended() <-chan struct{} { return g.fault.ended }
