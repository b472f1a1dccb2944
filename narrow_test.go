package symmem

import "symmem/driver"

// narrow is a communicator that cannot take the window path for some calls.
type narrow struct {
	driver.Communicator
	windowed func(*driver.Call) error
}

func (n narrow) Windowed(call *driver.Call) error { return n.windowed(call) }

// Narrow makes the group's communicator answer Windowed by a function.
func Narrow(g *Group, windowed func(*driver.Call) error) {
	g.comm = narrow{g.comm, windowed}
	g.epoch.Add(1)
}
