package cuda

import (
	"runtime"

	"symmem/internal/dl"
)

// Graph is a CUDA graph (CUgraph).
type Graph uintptr

// GraphExec is a graph that can be launched (CUgraphExec).
type GraphExec uintptr

// Node is a graph node (CUgraphNode), which exists as long as the graph.
type Node uintptr

// graphs calls the functions for graphs.
type graphs struct{ table }

// GraphInstantiate makes a graph executable. The graph can be destroyed before the GraphExec.
func (g *graphs) GraphInstantiate(graph Graph) (GraphExec, error) {
	const noFlags = 0
	return getValue[GraphExec](&g.table, graphInstantiate, uintptr(graph), noFlags)
}

// GraphLaunch queues a graph's work. Launches of one GraphExec never overlap.
func (g *graphs) GraphLaunch(exec GraphExec, stream Stream) error {
	return g.call(graphLaunch, uintptr(exec), uintptr(stream))
}

// GraphExecDestroy destroys a GraphExec. Queued launches still run.
func (g *graphs) GraphExecDestroy(exec GraphExec) error {
	return g.call(graphExecDestroy, uintptr(exec))
}

// GraphDestroy destroys a graph.
func (g *graphs) GraphDestroy(graph Graph) error { return g.call(graphDestroy, uintptr(graph)) }

// GraphAddEventRecord adds a node that records an event after the given nodes have run.
func (g *graphs) GraphAddEventRecord(graph Graph, nodes []Node, event Event) (Node, error) {
	node, err := getValue[Node](&g.table, graphAddEventRecord, uintptr(graph), addressOf(nodes),
		uintptr(len(nodes)), uintptr(event))
	runtime.KeepAlive(nodes)
	return node, err
}

// addressOf returns the address of the first node, or 0. The garbage collector does not know this
// reference, so the caller must keep the slice alive during the call of C code.
func addressOf(nodes []Node) uintptr {
	if len(nodes) == 0 {
		return 0
	}

	return dl.AddressOf(&nodes[0])
}

// GraphAddDependencies makes successors[i] depend on nodes[i], for each i.
func (g *graphs) GraphAddDependencies(graph Graph, nodes, successors []Node) error {
	return g.changeDependencies(graphAddDependencies, graphAddDependencies2, graph, nodes, successors)
}

// GraphRemoveDependencies removes the dependency of successors[i] on nodes[i], for each i.
func (g *graphs) GraphRemoveDependencies(graph Graph, nodes, successors []Node) error {
	return g.changeDependencies(graphRemoveDependencies, graphRemoveDependencies2, graph, nodes,
		successors)
}

// changeDependencies calls newFunction or, if the driver lacks it, oldFunction. newFunction has an
// additional parameter, the data of the edges.
func (g *graphs) changeDependencies(
	oldFunction, newFunction function, graph Graph, nodes, successors []Node,
) error {
	defer runtime.KeepAlive(nodes)
	defer runtime.KeepAlive(successors)
	n := uintptr(min(len(nodes), len(successors)))
	if g.symbols[newFunction] != 0 {
		const noEdgeData = 0
		return g.call(newFunction, uintptr(graph), addressOf(nodes), addressOf(successors),
			noEdgeData, n)
	}

	return g.call(oldFunction, uintptr(graph), addressOf(nodes), addressOf(successors), n)
}

// userObject is a reference count with a destructor (CUuserObject).
type userObject uintptr

const (
	noDestructorSync = 1 // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC: CUDA does not wait for the destructor
	moveReferences   = 1 // CU_GRAPH_USER_OBJECT_MOVE: the graph takes over the caller's references
)

// CallAfterGraph makes CUDA call end once, when nothing uses the graph any more. This is after the
// graph and its clones, GraphExecs and parent graphs have been destroyed, and all launches have
// ended. The caller can still be capturing the graph.
//
// end runs on a CUDA thread. It must not call CUDA or NCCL, must not wait for a thread that does,
// and must not panic. If CallAfterGraph returns an error, end is not called.
//
// Before CUDA 11.3, the error is a *MissingError.
func (g *graphs) CallAfterGraph(graph Graph, end func()) error {
	for _, f := range []function{userObjectCreate, userObjectRelease, graphRetainUserObject} {
		if g.symbols[f] == 0 {
			return &MissingError{Function: names[f], Path: g.library.Path()}
		}
	}

	// CUDA calls end as the destructor of a userObject, to which only the graph refers.
	work := NewHostFuncOnce(end)
	cell := dl.NewCell(userObject(0))
	const oneReference = 1
	err := g.call(userObjectCreate, cell.Address(), uintptr(work), hostCallback(), oneReference,
		noDestructorSync)
	object := cell.Take()
	if err != nil {
		work.Release()
		return err
	}

	err = g.call(graphRetainUserObject, uintptr(graph), uintptr(object), oneReference,
		moveReferences)
	if err != nil {
		work.Release() // so that cuUserObjectRelease does not call end
		_ = g.call(userObjectRelease, uintptr(object), oneReference)
	}

	return err
}
