package symmem

import "symmem/driver"

// narrow is a communicator that answers by functions which calls can take which path.
type narrow struct {
	driver.Communicator
	windowed, direct func(*driver.Call) error
}

func (n narrow) Windowed(call *driver.Call) error { return n.windowed(call) }

func (n narrow) Direct(call *driver.Call) error { return n.direct(call) }

// Narrowed is a group like this one, for Route and Explain, whose communicator answers Windowed and
// Direct by functions; nil leaves what it answers itself.
func Narrowed(g *Group, windowed, direct func(*driver.Call) error) *Group {
	if windowed == nil {
		windowed = g.comm.Windowed
	}
	if direct == nil {
		direct = g.comm.Direct
	}
	like := &Group{
		rt: g.rt, id: g.id, ranks: g.ranks, rank: g.rank, tuning: g.tuning, shape: g.shape,
		fault: g.fault, comm: narrow{g.comm, windowed, direct},
	}
	like.choice.Store(g.choice.Load())
	like.table.Store(g.table.Load())
	like.members.Store(g.members.Load())
	return like
}

// Route is the path of a call, and why, and its digest.
func Route(g *Group, c Call) (path, why string, digest uint64) {
	call, reason := planner{g}.route(&wholeRequest{request: request{
		operation: c.Operation, dataType: c.Type, reduceOp: c.Op, root: c.Root, count: c.Count,
		send: c.Send, recv: c.Recv, choice: c.Path,
	}})
	has := call.SendWindow != nil || call.RecvWindow != nil
	if has && call.Path == driver.PathPlain || !has && call.Path == driver.PathWindow {
		return call.Path.String() + " with the windows of another path", reason.String(), 0
	}
	return call.Path.String(), reason.String(), call.Digest
}
