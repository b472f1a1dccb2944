package symmem

import "symmem/driver"

// narrow is a communicator that cannot take the window path for some calls.
type narrow struct {
	driver.Communicator
	windowed func(*driver.Call) error
}

func (n narrow) Windowed(call *driver.Call) error { return n.windowed(call) }

// RouteOf is the path of a reduction in place, and why, on a group like this one whose communicator
// answers Windowed by a function.
func RouteOf(
	g *Group, windowed func(*driver.Call) error, m Memory, count int64, op ReduceOp,
) (path, why string) {
	like := &Group{
		rt: g.rt, id: g.id, ranks: g.ranks, rank: g.rank, tuning: g.tuning, shape: g.shape,
		comm: narrow{g.comm, windowed},
	}
	like.choice.Store(g.choice.Load())
	like.table.Store(g.table.Load())
	call, reason := like.route(&request{
		operation: driver.AllReduce, send: m, recv: m, count: count, dataType: Float32, reduceOp: op,
	})
	if call.Path == driver.PathPlain && (call.SendWindow != nil || call.RecvWindow != nil) {
		return "plain with windows", reason.String()
	}
	return call.Path.String(), reason.String()
}
