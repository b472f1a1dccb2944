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

type graphs struct{ table }

// GraphInstantiate makes a graph executable. The graph can be destroyed before the GraphExec.
func (g *graphs) GraphInstantiate(graph Graph) (GraphExec, error) {
	return getValue[GraphExec](&g.table, graphInstantiate, uintptr(graph), 0)
}

// GraphLaunch queues a graph's work. Launches of one GraphExec never overlap.
func (g *graphs) GraphLaunch(exec GraphExec, stream Stream) error {
	return g.call(graphLaunch, uintptr(exec), uintptr(stream))
}

// GraphExecDestroy destroys a GraphExec. Queued launches still run.
func (g *graphs) GraphExecDestroy(exec GraphExec) error {
	return g.call(graphExecDestroy, uintptr(exec))
}

func (g *graphs) GraphDestroy(graph Graph) error { return g.call(graphDestroy, uintptr(graph)) }

// GraphAddEventRecord adds a node that records an event after the given nodes have run.
func (g *graphs) GraphAddEventRecord(graph Graph, nodes []Node, event Event) (Node, error) {
	node, err := getValue[Node](&g.table, graphAddEventRecord, uintptr(graph), addressOf(nodes),
		uintptr(len(nodes)), uintptr(event))
	runtime.KeepAlive(nodes)
	return node, err
}

// The caller of addressOf must keep the slice alive.
func addressOf(nodes []Node) uintptr {
	if len(nodes) == 0 {
		return 0
	}
	return dl.AddressOf(&nodes[0])
}

func (g *graphs) GraphAddDependencies(graph Graph, nodes, successors []Node) error {
	return g.changeDependencies(graphAddDependencies, graphAddDependencies2, graph, nodes, successors)
}

func (g *graphs) GraphRemoveDependencies(graph Graph, nodes, successors []Node) error {
	return g.changeDependencies(graphRemoveDependencies, graphRemoveDependencies2, graph, nodes,
		successors)
}

// newFunction takes edge data, too. Some drivers lack it.
func (g *graphs) changeDependencies(
	oldFunction, newFunction function, graph Graph, nodes, successors []Node,
) error {
	defer runtime.KeepAlive(nodes)
	defer runtime.KeepAlive(successors)
	n := uintptr(min(len(nodes), len(successors)))
	if g.symbols[newFunction] != 0 {
		return g.call(newFunction, uintptr(graph), addressOf(nodes), addressOf(successors), 0, n)
	}
	return g.call(oldFunction, uintptr(graph), addressOf(nodes), addressOf(successors), n)
}

// userObject is a reference count with a destructor (CUuserObject).
type userObject uintptr

const (
	noDestructorSync = 1 // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
	moveReferences   = 1 // CU_GRAPH_USER_OBJECT_MOVE
)

// CallAfterGraph makes CUDA call end once, after the graph, its clones, GraphExecs, parent graphs
// and launches have ended. The caller can still be capturing the graph.
//
// end runs on a CUDA thread. It must not call CUDA or NCCL, must not wait for a thread that does,
// and must not panic. If CallAfterGraph returns an error, end is not called.
//
// Before CUDA 11.3, the error is a *MissingError.
func (g *graphs) CallAfterGraph(graph Graph, end func()) error {
	for _, f := range []function{userObjectCreate, userObjectRelease, graphRetainUserObject} {
		if g.symbols[f] == 0 {
			return &MissingError{names[f], g.library.Path()}
		}
	}
	work := NewHostFuncOnce(end)
	cell := dl.NewCell(userObject(0))
	err := g.call(userObjectCreate, cell.Address(), uintptr(work), hostCallback(), 1,
		noDestructorSync)
	object := cell.Take()
	if err != nil {
		work.Release()
		return err
	}
	err = g.call(graphRetainUserObject, uintptr(graph), uintptr(object), 1, moveReferences)
	if err != nil {
		work.Release() // so that cuUserObjectRelease does not call end
		_ = g.call(userObjectRelease, uintptr(object), 1)
	}
	return err
}
