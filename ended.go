package symmem

// Ended is closed when the group has failed or was closed; Err then says how.
func (g *Group) Ended() <-chan struct{} { return g.fault.ended }
