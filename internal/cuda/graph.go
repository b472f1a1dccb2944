package cuda

import "symmem/internal/dl"

// Graph is captured work: CUgraph.
type Graph uintptr

// GraphExec is a graph that can run: CUgraphExec.
type GraphExec uintptr

// GraphInstantiate makes a graph runnable. The result does not depend on the graph any more.
func (d *Driver) GraphInstantiate(graph Graph) (GraphExec, error) {
	exec := dl.NewCell(GraphExec(0))
	err := d.call(graphInstantiate, exec.Address(), uintptr(graph), 0)
	return exec.Take(), err
}

// GraphLaunch queues the work of a graph. Launches of one GraphExec never overlap.
func (d *Driver) GraphLaunch(exec GraphExec, stream Stream) error {
	return d.call(graphLaunch, uintptr(exec), uintptr(stream))
}

// GraphExecDestroy gives a runnable graph back; a launch that is under way still finishes.
func (d *Driver) GraphExecDestroy(exec GraphExec) error {
	return d.call(graphExecDestroy, uintptr(exec))
}

// GraphDestroy gives a graph back.
func (d *Driver) GraphDestroy(graph Graph) error { return d.call(graphDestroy, uintptr(graph)) }
