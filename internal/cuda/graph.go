package cuda

import (
	"runtime"

	"symmem/internal/dl"
)

// Graph is captured work: CUgraph.
type Graph uintptr

// GraphExec is a graph that can run: CUgraphExec.
type GraphExec uintptr

// Node is a piece of work of a graph: CUgraphNode. It ends with the graph.
type Node uintptr

// graphs has the functions of the driver for graphs.
type graphs struct{ table }

// GraphInstantiate makes a graph runnable. The result does not depend on the graph any more.
func (g *graphs) GraphInstantiate(graph Graph) (GraphExec, error) {
	return made[GraphExec](&g.table, graphInstantiate, uintptr(graph), 0)
}

// GraphLaunch queues the work of a graph. Launches of one GraphExec never overlap.
func (g *graphs) GraphLaunch(exec GraphExec, stream Stream) error {
	return g.call(graphLaunch, uintptr(exec), uintptr(stream))
}

// GraphExecDestroy gives a runnable graph back; a launch that is under way still finishes.
func (g *graphs) GraphExecDestroy(exec GraphExec) error {
	return g.call(graphExecDestroy, uintptr(exec))
}

// GraphDestroy gives a graph back.
func (g *graphs) GraphDestroy(graph Graph) error { return g.call(graphDestroy, uintptr(graph)) }

// GraphAddEventRecord adds a node that records an event in each launch, behind the given nodes. A
// launch makes the event mark that point at once: who waits for it from then on waits for the node.
func (g *graphs) GraphAddEventRecord(graph Graph, behind []Node, event Event) (Node, error) {
	node, err := made[Node](&g.table, graphAddEventRecord, uintptr(graph), addressOf(behind),
		uintptr(len(behind)), uintptr(event))
	runtime.KeepAlive(behind)
	return node, err
}

// addressOf is where C finds the nodes, which the caller keeps alive; 0 if there are none.
func addressOf(nodes []Node) uintptr {
	if len(nodes) == 0 {
		return 0
	}
	return dl.AddressOf(&nodes[0])
}

// GraphAddDependencies makes each node of to depend on that of from with the same index.
func (g *graphs) GraphAddDependencies(graph Graph, from, to []Node) error {
	return g.dependencies(graphAddDependencies, graphAddDependencies2, graph, from, to)
}

// GraphRemoveDependencies takes back what GraphAddDependencies, or the making of a node, has done.
func (g *graphs) GraphRemoveDependencies(graph Graph, from, to []Node) error {
	return g.dependencies(graphRemoveDependencies, graphRemoveDependencies2, graph, from, to)
}

// dependencies calls the older function, or the newer one where there is one, which also takes data
// of edges.
func (g *graphs) dependencies(older, newer function, graph Graph, from, to []Node) error {
	defer runtime.KeepAlive(from)
	defer runtime.KeepAlive(to)
	n := uintptr(min(len(from), len(to)))
	if g.symbols[newer] != 0 {
		return g.call(newer, uintptr(graph), addressOf(from), addressOf(to), 0, n)
	}
	return g.call(older, uintptr(graph), addressOf(from), addressOf(to), n)
}

// userObject is a CUuserObject: a count of references with a destructor.
type userObject uintptr

// The only flags there are.
const (
	noDestructorSync = 1 // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
	moveReferences   = 1 // CU_GRAPH_USER_OBJECT_MOVE
)

// AtGraphEnd has a function called once, when nothing is left of a graph, which may be one that a
// capture writes to: not the graph, no clone of it, nothing that was instantiated of these, no
// graph that records a launch of that, and no launch under way. A capture that is lost ends its
// graph, too. The function runs on a thread of CUDA, some time after; it must not call into CUDA
// or NCCL, must not wait for what does, and must not panic. After an error it is not called.
//
// A driver that has no user objects (before CUDA 11.3) gives a *MissingError.
func (g *graphs) AtGraphEnd(graph Graph, end func()) error {
	for _, f := range []function{userObjectCreate, userObjectRelease, graphRetainUserObject} {
		if g.symbols[f] == 0 {
			return &MissingError{names[f], g.library.Path()}
		}
	}
	work := NewHostFuncOnce(end)
	cell := dl.NewCell(userObject(0))
	err := g.call(userObjectCreate, cell.Address(), uintptr(work), runHost(), 1, noDestructorSync)
	object := cell.Take()
	if err != nil {
		work.Release()
		return err
	}
	err = g.call(graphRetainUserObject, uintptr(graph), uintptr(object), 1, moveReferences)
	if err != nil {
		work.Release() // so that the destructor does nothing
		_ = g.call(userObjectRelease, uintptr(object), 1)
	}
	return err
}
